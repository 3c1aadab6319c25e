// Adds a field above each long table, which hides the rows without the words that are typed into it.
// Outputs of notebooks without a table of text get a class: their lines break on narrow screens.
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length < 25) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.className = "table-filter";
    field.placeholder = `filter ${rows.length} rows`;
    field.setAttribute("aria-label", "filter the rows of the table below");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    const box = table.closest(".pst-scrollable-table-container") ?? table;
    box.before(field);
  }
  for (const output of document.querySelectorAll(".cell_output pre")) {
    output.classList.toggle("sentences", !output.textContent.includes("\u2502"));
  }
});
