#!/usr/bin/env python3
"""Greedy tokens of a llama2.c checkpoint, from numpy alone, for tests of the importer.

    stories.py stories260K.bin tok512.bin

Writes fixtures/stories260K.json: for each prompt its ids, the next 100 ids that greedy decoding
takes, and the smallest gap between the best and the second logit on the way (what rounding may
cost before an id changes). Only ids are stored, no weights. Runs in fp64 and in fp32 and refuses to
write when they disagree.

A llama2.c file (version 0, little endian): 7 int32 - dim, hidden_dim, n_layers, n_heads,
n_kv_heads, vocab_size (negative: an own output matrix follows), seq_len - then fp32 matrices
(out, in), each for all layers: embedding, attention norm, wq, wk, wv, wo, MLP norm, w1 (gate),
w2 (down), w3 (up), final norm, two unused tables (seq_len, head_dim/2) of rotations, and the output
matrix. RMSNorm with eps 1e-5, SwiGLU, rotation of adjacent pairs (2i, 2i + 1) with theta 10000.
"""
import hashlib
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
N_NEW, BOS, EPS, THETA = 100, 1, 1e-5, 10000.0
PROMPTS = ["", "Lily and Tom went to the big park."]


class Checkpoint:
    def __init__(self, data, dtype):
        names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "seq")
        self.size = s = dict(zip(names, struct.unpack("<7i", data[:28])))
        values = np.frombuffer(data, "<f4", offset=28).astype(dtype)
        self.at = 0

        def take(*shape):
            n = int(np.prod(shape))
            self.at += n
            return values[self.at - n:self.at].reshape(shape)

        C, F, L, V = s["dim"], s["hidden"], s["layers"], abs(s["vocab"])
        kv = C // s["heads"] * s["kv_heads"]
        self.wte = take(V, C)
        self.norm_1, self.wq = take(L, C), take(L, C, C)
        self.wk, self.wv, self.wo = take(L, kv, C), take(L, kv, C), take(L, C, C)
        self.norm_2 = take(L, C)
        self.gate, self.down, self.up = take(L, F, C), take(L, C, F), take(L, F, C)
        self.norm_f = take(C)
        take(2, s["seq"], C // s["heads"] // 2)
        self.head = take(V, C) if s["vocab"] < 0 else self.wte
        assert self.at == values.size, "the header does not describe the whole file"


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(EPS)) * weight


def rotate(x):
    """x (T, heads, n): pair (2i, 2i + 1) turns by t * theta^(-2i/n)."""
    T, _, n = x.shape
    angle = np.arange(T)[:, None] * THETA ** (-np.arange(0, n, 2) / n)
    cos, sin = (f(angle).astype(x.dtype)[:, None] for f in (np.cos, np.sin))
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return y


def next_logits(m, ids):
    """Logits after the last id, from a full forward pass without a cache."""
    s = m.size
    T, n_heads, n_kv = len(ids), s["heads"], s["kv_heads"]
    hs = s["dim"] // n_heads
    x = m.wte[ids]
    future = np.triu(np.ones((T, T), bool), 1)
    for i in range(s["layers"]):
        h = rms_norm(x, m.norm_1[i])
        q = rotate((h @ m.wq[i].T).reshape(T, n_heads, hs))
        k = rotate((h @ m.wk[i].T).reshape(T, n_kv, hs)).repeat(n_heads // n_kv, 1)
        v = (h @ m.wv[i].T).reshape(T, n_kv, hs).repeat(n_heads // n_kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / x.dtype.type(np.sqrt(hs))
        scores[:, future] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", p, v).reshape(T, -1) @ m.wo[i].T
        h = rms_norm(x, m.norm_2[i])
        gate = h @ m.gate[i].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ m.up[i].T)) @ m.down[i].T
    return m.head @ rms_norm(x[-1], m.norm_f)


class Tokenizer:
    """tok512.bin: int32 longest length, then for each id fp32 score, int32 length, bytes."""

    def __init__(self, data, n):
        self.pieces, self.scores, at = [], [], 4
        for _ in range(n):
            score, length = struct.unpack("<fi", data[at:at + 8])
            self.pieces.append(data[at + 8:at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        assert at == len(data)
        self.ids = {piece: i for i, piece in enumerate(self.pieces) if i > 2}

    def encode(self, text):
        """BOS, a leading space, then the pair of the highest score merges until none is left."""
        ids = []
        for character in " " + text if text else "":
            raw = character.encode()
            ids += [self.ids[raw]] if raw in self.ids else [byte + 3 for byte in raw]
        while True:
            best = None
            for i, (a, b) in enumerate(zip(ids, ids[1:])):
                pair = self.ids.get(self.pieces[a] + self.pieces[b])
                if pair is not None and (best is None or self.scores[pair] > best[0]):
                    best = self.scores[pair], i, pair
            if best is None:
                return [BOS] + ids
            ids[best[1]:best[1] + 2] = [best[2]]

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")


def greedy(m, prompt):
    """The next N_NEW ids, and the smallest gap between the two best logits."""
    ids, gap = list(prompt), np.inf
    for _ in range(N_NEW):
        logits = next_logits(m, ids)
        second, best = np.sort(logits)[-2:]
        gap = min(gap, float(best - second))
        ids.append(int(logits.argmax()))
    return ids[len(prompt):], gap


def main(model_path, tokenizer_path):
    data = pathlib.Path(model_path).read_bytes()
    fp64, fp32 = Checkpoint(data, np.float64), Checkpoint(data, np.float32)
    tokenizer = Tokenizer(pathlib.Path(tokenizer_path).read_bytes(), abs(fp64.size["vocab"]))
    runs = []
    for text in PROMPTS:
        prompt = tokenizer.encode(text)
        ids, gap = greedy(fp64, prompt)
        assert ids == greedy(fp32, prompt)[0], "fp32 takes other tokens: choose another prompt"
        print(f"{text!r} ->{tokenizer.decode(ids)!r}, smallest gap {gap:.4f}")
        runs.append({"text": text, "prompt": prompt, "ids": ids, "gap": round(gap, 6)})
    out = {"model": pathlib.Path(model_path).name, "sha256": hashlib.sha256(data).hexdigest(),
           "runs": runs}
    (HERE / "fixtures" / "stories260K.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
