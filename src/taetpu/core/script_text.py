"""Text that enters scripts and configuration files of other programs."""

from taetpu.core.errors import KeyPath, UserError


def check_script_text(text: str, what: str, path: KeyPath = ()) -> str:
    """Return `text` if it has no control characters, such as line breaks, which would end a line of a script.

    Args:
        text: The text.
        what: The noun for the text in the error message.
        path: The option or setting with the text, for the error message.

    Raises:
        UserError: If the text has a control character.
    """
    control = next((character for character in text if ord(character) < 32 or 127 <= ord(character) < 160), None)
    if control is None:
        return text
    problem = f"the {what} {text!r} has the control character {control!r}, which cannot be written to a script"
    raise UserError(problem, path=path, remedy="Rename it, or use another one.")
