"""What `taetpu plan` says about the effects that a study can detect."""

from typing import Any

from taetpu.cli.output import plural


def describe_resolution(analysis: dict[str, Any]) -> str:
    """Return a description of the effects that the study can detect."""
    if "shares" in analysis:
        from taetpu.report.outcome_text import describe_exact_test

        return describe_exact_test(analysis["shares"])
    if analysis["resolves_sd"] is None:
        return ""
    power = f"with {100 * analysis['power']:.0f} % power"
    if analysis["noise"] is None:
        return (
            f"the smallest true effect that the study detects {power} is {analysis['resolves_sd']:.2g} times the "
            "standard deviation between runs; --noise SD converts it to the metric's unit"
        )
    text = f"noise {analysis['noise']:.2g} ({analysis['noise_from']}): "
    if analysis["most"] is not None and analysis["resolves"] > analysis["most"]:
        text += f"no effect is detected {power}, because no effect can be larger than {analysis['most']:g}"
    else:
        text += f"the smallest true effect that the study detects {power} is {analysis['resolves']:.2g}"
    if analysis["effect"] is None:
        return text
    seeds = "too many seeds to count" if analysis["seeds"] is None else plural(analysis["seeds"], "seed")
    work = "" if analysis["flops"] is None else f", {analysis['flops']:.3g} FLOPs"
    return f"{text}; an effect of {analysis['effect']:g} takes {seeds}{work}"
