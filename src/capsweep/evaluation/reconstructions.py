"""Figure 3 of "Dynamic Routing Between Capsules": test examples and their reconstructions."""

import numpy as np

from capsweep.errors import NotApplicableError
from capsweep.evaluation import decoded
from capsweep.evaluation.decoded import Columns, Stored
from capsweep.evaluation.trained import Trained


def of(trained: Trained, stored: Stored, right: int, failed: int) -> Columns:
    """The first so many examples that are classified correctly, drawn from the label's capsule;
    then the first failures, each drawn from its label's capsule and from the predicted one.

    Raises NotApplicableError for a network without a decoder, and for several classes in one image.
    """
    decoded.decoder_of(trained)
    if stored[1].ndim > 1:
        raise NotApplicableError(
            "its images show two classes, which are drawn one by one; ask for segmentation"
        )
    places = decoded.first(stored, right=right, failed=failed)
    examples = decoded.ask(trained, stored, places)
    index = np.concatenate([examples.right, np.repeat(examples.failed, 2)])
    from_KL = examples.labels_KL[index]
    from_KL[len(examples.right) + 1 :: 2] = examples.predictions_KL[examples.failed]
    return decoded.columns(trained, examples, index, from_KL)
