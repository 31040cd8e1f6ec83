"""The child's side of child.py; imported by the scripts that run in a peer's interpreter, before its libraries."""
import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print must not reach the answers


def serve(ready, answer):
    """Says that it is ready, then answers each line by calling answer(**question)."""
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)
