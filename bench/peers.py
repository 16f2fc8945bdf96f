#!/usr/bin/env python3
"""peers.py - train_gpt against PyTorch (and, where it is at hand, llm.c) on one training step.

The same work for both: a GPT of the modern recipe (RMSNorm without gain, RoPE, QK-norm, relu^2, untied head, soft-cap)
in the sizes of the config, batch 1, forward, backward, gradient norm, AdamW on every tensor. The two take turns, A B A B,
each time in a fresh process, so that a busy machine slows both; what counts is the ratio.

    bench/peers.py                                       configs/128m-mha.json, fp32 and bf16
    bench/peers.py --rounds 5 --compute fp32
    bench/peers.py --llmc ../llm.c/train_gpt2            llm.c's CPU trainer too, run in its own folder

PyTorch is taken from the interpreter given by --python (a Debian machine: /usr/bin/python3 with python3-torch). Without it
the script says so and compares with what is left. It measures speed only: that both compute the same is what
test/golden checks.
"""
import argparse
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


# The reference BLAS stays near 1 GFLOP/s, any other one reaches tens on one core.
SLOW_BLAS = 2e9


def progress(text):
    print("peers: " + text, file=sys.stderr, flush=True)


def die_with_parent():
    """In the child: it gets SIGKILL when this process is gone, however that came (prctl(2), Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def output_of(command, env, timeout):
    """(status, stdout) of a program whose progress goes to our stderr. It ends when we do: by die_with_parent, and
    because subprocess.run kills it when an exception (stop's, Ctrl-C, a timeout) leaves it."""
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=timeout, preexec_fn=die_with_parent)
    return done.returncode, done.stdout


def stop(number, _frame):
    sys.exit(128 + number)


def peer_environment(threads):
    """OPENBLAS_CORETYPE and its like hold OpenBLAS below what the processor can do: the peer gets its best."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    env["OMP_NUM_THREADS"] = str(threads)
    return env


# --- PyTorch, in a process of its own


def torch_model(size):
    import torch
    from torch import nn
    from torch.nn import functional as F

    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def rotate(x, cos, sin):  # (B, NH, T, HS), half-split pairs
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos + b * sin, b * cos - a * sin), -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            c, f = size["n_embd"], size["ffn_dim"]
            width = size["n_head"] * size["head_dim"]
            self.qkv = nn.Linear(c, 3 * width, bias=False)
            self.wo = nn.Linear(width, c, bias=False)
            self.fc = nn.Linear(c, f, bias=False)
            self.proj = nn.Linear(f, c, bias=False)

        def attend(self, x, table, mask):
            B, T, _ = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, size["n_head"], size["head_dim"]).permute(2, 0, 3, 1, 4)
            q, k = norm(rotate(q, *table)).to(v.dtype), norm(rotate(k, *table)).to(v.dtype)
            if hasattr(F, "scaled_dot_product_attention"):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                s = q @ k.transpose(-2, -1) * size["head_dim"] ** -0.5
                y = torch.softmax(s + mask.to(s.dtype), -1).to(v.dtype) @ v
            return self.wo(y.transpose(1, 2).reshape(B, T, -1))

        def forward(self, x, table, mask):
            x = x + self.attend(norm(x), table, mask)
            return x + self.proj(F.relu(self.fc(norm(x))).square())

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            vocab = (size["vocab_size"] + 127) // 128 * 128
            self.wte = nn.Embedding(vocab, size["n_embd"])
            self.blocks = nn.ModuleList(Block() for _ in range(size["n_layer"]))
            self.head = nn.Linear(size["n_embd"], vocab, bias=False)
            T, half = size["tokens"], size["head_dim"] // 2
            angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(half)[None, :] / half)
            self.table = (angle.cos(), angle.sin())
            self.mask = torch.full((T, T), float("-inf")).triu(1)

        def forward(self, ids, targets):
            x = norm(self.wte(ids))
            for block in self.blocks:
                x = block(x, self.table, self.mask)
            logits = 15 * torch.tanh(self.head(norm(x)).float() / 15)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    return Gpt()


def torch_worker(size):
    """One warm-up step, then `repeat` timed ones; prints the seconds as JSON."""
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(size["threads"])
    model = torch_model(size)
    options = {"lr": 1e-9, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        adamw = torch.optim.AdamW(model.parameters(), fused=True, **options)
    except (RuntimeError, TypeError):
        adamw = torch.optim.AdamW(model.parameters(), foreach=True, **options)
    ids = torch.randint(0, size["vocab_size"], (size["batch"], size["tokens"]))
    targets = torch.randint(0, size["vocab_size"], (size["batch"], size["tokens"]))
    seconds = []
    for step in range(size["repeat"] + 1):
        start = time.perf_counter()
        adamw.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=size["compute"] == "bf16"):
            loss = model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        loss.item()
        progress(f"PyTorch step {step} of {size['repeat']}: {time.perf_counter() - start:.1f} s")
        if step:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "version": torch.__version__}))


def torch_speed(args, size):
    status, text = output_of([args.python, os.path.abspath(__file__), "--torch-worker", json.dumps(size)],
                             peer_environment(size["threads"]), args.timeout)
    if status:
        raise RuntimeError(f"PyTorch ended with status {status}")
    return size["batch"] * size["tokens"] / statistics.median(json.loads(text)["seconds"])


def torch_probe():
    """Version, and the speed of one product with one thread."""
    import torch

    torch.set_num_threads(1)
    a, seconds = torch.rand(512, 512), []
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"version": torch.__version__, "flops": 2 * 512**3 / min(seconds)}))


def find_torch(args):
    """The version; args.python becomes the interpreter that has it. None, with a sentence, without a usable one."""
    for python in [args.python] if args.python else [sys.executable, "/usr/bin/python3"]:
        try:
            done = subprocess.run([python, os.path.abspath(__file__), "--torch-probe"], env=peer_environment(1),
                                  capture_output=True, text=True, timeout=300, preexec_fn=die_with_parent)
        except OSError:
            continue
        if done.returncode:
            continue
        found = json.loads(done.stdout)
        if found["flops"] < SLOW_BLAS:
            print(f"peers: the PyTorch {found['version']} of {python} makes {found['flops'] / 1e9:.1f} GFLOP/s in a product of "
                  "512 x 512 matrices, so its BLAS is the slow reference one: install libopenblas0")
            return None
        args.python = python
        return found["version"]
    print("peers: PyTorch not found; install it (Debian: python3-torch and libopenblas0) or give --python")
    return None


# --- Ours


def our_step(args, config, compute, batch, tokens):
    command = [args.train_gpt, "bench", config, "--only", "step", "--compute", compute, "--batch", str(batch), "--tokens",
               str(tokens), "--repeat", str(args.repeat), "--seconds", "1e6", "--device", "cpu", "--json"]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    status, text = output_of(command, env, args.timeout)
    if status:
        sys.exit(f"peers: {args.train_gpt} bench ended with status {status}")
    return json.loads(text)["step"][0]


# --- llm.c: prints "step 3: train loss 4.1 (took 1234.5 ms)" for its fixed B = 4, T = 64


def llmc_speed(args):
    env = peer_environment(args.threads)
    folder = os.path.dirname(os.path.abspath(args.llmc)) or "."
    process = subprocess.Popen([os.path.abspath(args.llmc)], cwd=folder, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent)
    times = []
    for line in process.stdout:
        took = re.search(r"step \d+.*took ([0-9.]+) ms", line)
        if took:
            times.append(float(took.group(1)) / 1000)
        if len(times) > args.repeat + 1:
            break
    process.terminate()
    process.wait()
    if len(times) < 2:
        raise RuntimeError("llm.c printed no step times; it expects its model and data files in its own folder")
    return args.llmc_batch * args.llmc_tokens / statistics.median(times[1:])


# --- In turns


def resolve(path):
    """The sizes of a config with its base files."""
    with open(path) as f:
        config = json.load(f)
    base = config.pop("base", None)
    merged = resolve(os.path.join(os.path.dirname(path), base)) if base else {}
    for section, values in config.items():
        if isinstance(values, dict):
            merged.setdefault(section, {}).update(values)
    return merged


def sizes(args, compute):
    config = resolve(args.config)
    model = config["model"]
    if config.get("attention", {}).get("type", "mha") != "mha":
        sys.exit("peers: the peers know attention.type mha only, found another in " + args.config)
    head = model.get("head_dim") or model["n_embd"] // model["n_head"]
    return {"n_layer": model["n_layer"], "n_embd": model["n_embd"], "n_head": model["n_head"], "head_dim": head,
            "ffn_dim": model.get("ffn_dim") or 4 * model["n_embd"], "vocab_size": model["vocab_size"],
            "batch": args.batch, "tokens": args.tokens, "compute": compute, "threads": args.threads, "repeat": args.repeat}


def turns(args, name, label, ours, peer):
    a, b = [], []
    for i in range(args.rounds):
        try:
            progress(f"{label} round {i + 1} of {args.rounds}: train_gpt")
            step = ours()
            a.append(step["tokens_per_s"])
            progress(f"{label} round {i + 1} of {args.rounds}: train_gpt {a[-1]:.1f} tokens/s; {name}")
            b.append(peer())
        except (RuntimeError, subprocess.TimeoutExpired) as e:
            print(f"{label}: left out: {e}")
            return
        print(f"{label} round {i + 1}: train_gpt {a[-1]:.1f} tokens/s ({100 * step['share_of_peak']:.0f} % of peak), "
              f"{name} {b[-1]:.1f} tokens/s, ratio {a[-1] / b[-1]:.2f}", flush=True)
    ratio = statistics.median(x / y for x, y in zip(a, b))
    print(f"{label}: train_gpt {statistics.median(a):.1f} tokens/s, {name} {statistics.median(b):.1f} tokens/s, "
          f"ratio {ratio:.2f} (medians of {args.rounds})", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--config", default=os.path.join(ROOT, "configs", "128m-mha.json"))
    p.add_argument("--train-gpt", default=os.path.join(ROOT, "build", "train_gpt"), help="our program")
    p.add_argument("--python", help="an interpreter with PyTorch; default: this one, then /usr/bin/python3")
    p.add_argument("--compute", default="fp32,bf16")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--rounds", type=int, default=3, help="turns of both")
    p.add_argument("--repeat", type=int, default=2, help="timed steps of a turn")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--timeout", type=float, default=1800, help="seconds for one turn of one program")
    p.add_argument("--llmc", metavar="FILE", help="llm.c's train_gpt2; its folder holds its model and data files")
    p.add_argument("--llmc-batch", type=int, default=4)
    p.add_argument("--llmc-tokens", type=int, default=64)
    p.add_argument("--torch-worker", help=argparse.SUPPRESS)
    p.add_argument("--torch-probe", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def main():
    args = arguments()
    if args.torch_worker:
        return torch_worker(json.loads(args.torch_worker))
    if args.torch_probe:
        return torch_probe()
    signal.signal(signal.SIGTERM, stop)
    if not os.path.exists(args.train_gpt):
        sys.exit(f"peers: {args.train_gpt} not found; run make, or give --train-gpt")
    version = find_torch(args)
    for compute in args.compute.split(",") if version else []:
        size = sizes(args, compute)
        turns(args, "PyTorch " + version, f"{os.path.basename(args.config)} {compute} B={args.batch} T={args.tokens}",
              lambda: our_step(args, args.config, compute, args.batch, args.tokens), lambda: torch_speed(args, size))
    if args.llmc:
        config = os.path.join(ROOT, "configs", "gpt2-124m.json")
        turns(args, "llm.c", f"gpt2-124m fp32 B={args.llmc_batch} T={args.llmc_tokens}",
              lambda: our_step(args, config, "fp32", args.llmc_batch, args.llmc_tokens), lambda: llmc_speed(args))
    return None


if __name__ == "__main__":
    main()
