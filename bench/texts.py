"""Texts of known length. Every word below is one token of MiniLM's WordPiece and of
SmolLM2's BPE (with and without a space before it), so a text has as many tokens as words,
and the same text has the same length for every peer.
"""
import random

WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea kid body information back parent face others
level office door health person art war history party result change reason research girl moment
air teacher force education the a of and to in is was for on with as by at from that it not but
or if so then when where while small large new old good bad high low early late public local
open clear simple strong free whole real best left long short red green blue white black first
second third next last many few more most some other same such own only very also often always
never again still just even here there now keep find give tell ask feel leave call make take
come look want use show play run move like live hold write sit stand pay include continue set
learn lead understand watch follow stop create read allow add grow walk win offer remember love
consider buy wait die send expect build stay fall cut reach kill
""".split()

SPECIAL = 2  # [CLS] and [SEP]


def text(rng, n_words):
    return " ".join(rng.choice(WORDS) for _ in range(n_words))


def encoder_texts(n=64, seed=33):
    """n texts of 10 to 60 tokens, special tokens included; the mean is 33."""
    rng = random.Random(seed)
    lengths = [round(rng.triangular(10, 60, 29)) for _ in range(n)]
    while sum(lengths) != 33 * n:  # nudge to the mean, so that seeds compare
        i = rng.randrange(n)
        step = 1 if sum(lengths) < 33 * n else -1
        lengths[i] = min(60, max(10, lengths[i] + step))
    return [text(rng, k - SPECIAL) for k in lengths]


def prompts(n, n_tokens=110, seed=110):
    """n prompts of about n_tokens: +-8, so that streams do not march in step."""
    rng = random.Random(seed)
    return [text(rng, n_tokens + rng.randint(-8, 8)) for _ in range(n)]
