"""Write token numbers to try `NAME.yaml` with: the bytes of Python's help topics, as unsigned integers of 16 bits."""

from pydoc_data.topics import topics

import numpy as np

text = "\n\n".join(topics[name] for name in sorted(topics))
np.save("NAME.npy", np.frombuffer(text.encode(), np.uint8).astype(np.uint16))
