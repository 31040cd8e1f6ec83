"""PyTorch with the classes of transformers. ORACLE_PEFT names the Python of its environment."""
from bench.peers.child import Child

NAME = "PyTorch"


class Torch(Child):
    """Writes the random model of a shape into a folder too, which peftd serves."""

    def __init__(self, bench, shape, folder, work):
        super().__init__(bench.peft, "run_torch.py", work / "torch.log", shape, folder, bench.threads)
