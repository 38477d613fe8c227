"""The settings and tensors of tiny Hugging Face models."""

import pytest
from tests.interop.cases import arrays, theirs


@pytest.fixture(scope="module")
def gpt2():
    model = theirs("gpt2")
    return model.config.to_dict(), arrays(model)


@pytest.fixture(scope="module")
def llama():
    model = theirs("llama-linear")
    return model.config.to_dict(), arrays(model)


@pytest.fixture(scope="module")
def gemma3():
    model = theirs("gemma3")
    return model.config.to_dict(), arrays(model)
