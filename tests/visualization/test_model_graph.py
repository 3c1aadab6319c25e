"""Graphs of models: nodes, edges, boxes and layouts; and what pictures of them need."""

import shutil
import sys

import pytest

import keras_dist as kd
from keras_dist.errors import MissingExtraError, ModelError
from keras_dist.utils import model_to_dot, plot_model

pydot = pytest.importorskip("pydot")


def nested():
    inner_input = kd.Input((4,), name="start")
    inner = kd.Model(inner_input, kd.layers.Dense(4, "relu", name="deep")(inner_input), name="inner")
    x = kd.Input((4,), name="x")
    h = inner(x)
    return kd.Model(x, kd.layers.Add(name="sum")([h, kd.layers.Dense(4, name="<b>")(h)]), name="outer")


def edges(graph):
    labels = {node.get_name(): node.get_label() for node in nodes(graph)}
    names = {name: label.split("<b>")[1].split("</b>")[0] for name, label in labels.items()}
    return sorted((names[edge.get_source()], names[edge.get_destination()]) for edge in graph.get_edges())


def nodes(graph):
    own = [node for node in graph.get_nodes() if node.get_name() != "node"]
    return [*own, *(node for box in graph.get_subgraphs() for node in nodes(box))]


def test_nodes_are_layers_and_edges_their_calls():
    model = nested()
    assert edges(model_to_dot(model)) == [
        ("&lt;b&gt;", "sum"),
        ("inner", "&lt;b&gt;"),
        ("inner", "sum"),
        ("x", "inner"),
    ]
    graph = model_to_dot(model, expand_nested=True)
    assert [box.get_label() for box in graph.get_subgraphs()] == ['"inner"']
    assert edges(graph) == [
        ("&lt;b&gt;", "sum"),
        ("deep", "&lt;b&gt;"),
        ("deep", "sum"),
        ("start", "deep"),
        ("x", "start"),
    ]
    shown = dict.fromkeys(["show_shapes", "show_dtype", "show_layer_activations", "show_trainable"], True)
    told = "".join(node.get_label() for node in nodes(model_to_dot(model, expand_nested=True, **shown)))
    for text in (
        "Input shape: <b>[(None, 4), (None, 4)]",
        "Activation: <b>relu",
        "dtype: <b>float32",
        "Trained: <b>yes",
    ):
        assert text in told, text
    assert isinstance(model_to_dot(model, subgraph=True), pydot.Cluster)


def test_layouts_are_told_of_weights_and_activations():
    mesh = kd.DeviceMesh((4, 2), ("data", "model"))
    rules = kd.LayoutMap(mesh)
    rules["d1/kernel"], rules["d1/output"] = (None, "model"), ("data", "model")
    with kd.ModelParallel(rules, batch_dim_name="data").scope():
        model = kd.Sequential([kd.Input((4,)), kd.layers.Dense(4, name="d1"), kd.layers.Dense(2, name="d2")])
    graph = model_to_dot(model, show_layouts=True)
    labels = [node.get_label() for node in nodes(graph)]
    assert any("kernel: <b>(4, 4) (-, model)" in label for label in labels)
    assert [edge.get("xlabel") for edge in graph.get_edges()] == ['"(data, -)"', '"(data, model)"']
    assert not any(edge.get("xlabel") for edge in model_to_dot(model).get_edges())


def test_source_needs_no_graphviz_and_pictures_do(tmp_path, monkeypatch):
    model = nested()
    path = tmp_path / "m.dot"
    assert plot_model(model, to_file=path, show_layer_names=True) is None
    assert path.read_text().startswith("digraph")
    assert path.read_text().count("->") == 4
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="pictures need Graphviz"):
        plot_model(model, to_file=tmp_path / "m.png")
    with pytest.raises(ModelError, match="must be built before its graph is drawn"):
        model_to_dot(kd.Sequential([kd.layers.Dense(2)]))
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(MissingExtraError, match="pydot"):
        model_to_dot(model)


def test_models_that_are_no_graph():
    class Own(kd.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = kd.layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model.build((None, 4))
    assert [node.get_label().count("Own") for node in nodes(model_to_dot(model))] == [1]
    chain = kd.Sequential([kd.layers.Dense(3, name="a"), kd.layers.Dense(2, name="b")])
    chain.build((None, 4))
    assert edges(model_to_dot(chain)) == [("a", "b")]
