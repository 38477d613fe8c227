"""`taetpu lens`: inspect trained and imported models. The commands are in the modules `lens_*`."""

import typer

from taetpu.cli.lens_attention import attention, scores
from taetpu.cli.lens_embed import embed, probe
from taetpu.cli.lens_knockout import knockout
from taetpu.cli.lens_layers import attribution, logit_lens, norms
from taetpu.cli.lens_patch import patch
from taetpu.cli.lens_perplexity import perplexity
from taetpu.cli.lens_predict import predict
from taetpu.cli.lens_sample import check, diff, sample
from taetpu.cli.lens_score import score
from taetpu.core.jax_setup import prepare_jax
from taetpu.store.errors import ADDRESS_FORMS

app = typer.Typer(
    help="Inspect trained and imported models.\n\n"
    f"ADDRESS is {ADDRESS_FORMS}; or the folder of a taetpu or Hugging Face model."
    "\n\nExample: taetpu lens perplexity latest story.txt",
)


@app.callback()
def prepare() -> None:
    """Store compiled programs, so that the next call of a command does not compile them again."""
    prepare_jax()


for command in (
    sample, check, diff, perplexity, score, predict, attention, scores, logit_lens, attribution, norms, knockout,
    patch, embed, probe,
):  # fmt: skip
    app.command()(command)
