"""The index of errors lists texts that functions make."""

import ast

from docs.generate import errors

SOURCE = """
raise argument_error("units", units, "a positive integer", example=8)
raise argument_error("bias", bias, "a flag", wrong="does not fit", error=DataError, layer=name)
raise argument_error(name, value, expected)
raise unknown_name_error("the mesh has no axis", axis, names, error=MeshError)
raise MeshError("the mesh has no devices", given=f"{n}", fix="pass some")
"""


def test_rows_of_each_way_to_raise():
    assert list(errors.raised(ast.parse(SOURCE))) == [
        ("ModelError", ("`units` must be a positive integer", "", "correct `units`, or leave it out")),
        ("DataError", ("`bias` of layer … does not fit", "", "expected: a flag")),
        ("MeshError", ("the mesh has no axis …", "", "correct the name: the error lists all names")),
        ("MeshError", ("the mesh has no devices", "", "pass some")),
    ]
