"""Transformer ablation studies, from a laptop to a TPU pod.

Public names are imported on first use, so that `import taetpu` stays fast. If the machine has no accelerator and the
user has chosen no platform, importing the package sets `JAX_PLATFORMS=cpu` before jax is imported.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from taetpu.core.accelerators import default_to_cpu

if TYPE_CHECKING:
    from taetpu.core.errors import Failed as Failed
    from taetpu.core.errors import UserError as UserError
    from taetpu.core.registry import register as register
    from taetpu.interop.exporting import to_huggingface as to_huggingface
    from taetpu.interop.huggingface import from_huggingface as from_huggingface
    from taetpu.interop.huggingface import load_folder as load_folder
    from taetpu.judging.judged import judge as judge
    from taetpu.lens.ablation.components import find_positions as find_positions
    from taetpu.lens.ablation.documents import split_documents as split_documents
    from taetpu.lens.ablation.knockout import knockout as knockout
    from taetpu.lens.ablation.patching import patch as patch
    from taetpu.lens.ablation.patching import read_pairs as read_pairs
    from taetpu.lens.ablation.pruning import pair_effects as pair_effects
    from taetpu.lens.ablation.removal import without as without
    from taetpu.lens.attention import attention_maps as attention_maps
    from taetpu.lens.attribution import attribution as attribution
    from taetpu.lens.embed import embed as embed
    from taetpu.lens.generate import Sampling as Sampling
    from taetpu.lens.generate import generate as generate
    from taetpu.lens.head_scores import head_scores as head_scores
    from taetpu.lens.logit_lens import logit_lens as logit_lens
    from taetpu.lens.opening import open_run as open_run
    from taetpu.lens.perplexity import perplexity as perplexity
    from taetpu.lens.predict import predict as predict
    from taetpu.lens.probe import probe as probe
    from taetpu.lens.score import score as score
    from taetpu.report.opened_study import open_study as open_study
    from taetpu.store.frame import read_metrics as read_metrics
    from taetpu.study.ablate import ablate as ablate
    from taetpu.study.components import components as components
    from taetpu.study.loading import load_study as load_study
    from taetpu.study.plots import plot as plot
    from taetpu.study.run_file import run as run

_HOMES = {
    "Failed": "core.errors",
    "Sampling": "lens.generate",
    "UserError": "core.errors",
    "ablate": "study.ablate",
    "attention_maps": "lens.attention",
    "attribution": "lens.attribution",
    "components": "study.components",
    "embed": "lens.embed",
    "find_positions": "lens.ablation.components",
    "from_huggingface": "interop.huggingface",
    "generate": "lens.generate",
    "head_scores": "lens.head_scores",
    "judge": "judging.judged",
    "knockout": "lens.ablation.knockout",
    "load_folder": "interop.huggingface",
    "load_study": "study.loading",
    "logit_lens": "lens.logit_lens",
    "open_run": "lens.opening",
    "open_study": "report.opened_study",
    "pair_effects": "lens.ablation.pruning",
    "patch": "lens.ablation.patching",
    "perplexity": "lens.perplexity",
    "plot": "study.plots",
    "predict": "lens.predict",
    "probe": "lens.probe",
    "read_metrics": "store.frame",
    "read_pairs": "lens.ablation.patching",
    "register": "core.registry",
    "run": "study.run_file",
    "score": "lens.score",
    "split_documents": "lens.ablation.documents",
    "to_huggingface": "interop.exporting",
    "without": "lens.ablation.removal",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    loaded = {name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType)}
    return sorted({*__all__, *loaded})


default_to_cpu()
