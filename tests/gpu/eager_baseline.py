#!/usr/bin/env python3
"""The same training step in eager PyTorch, for comparison with `steptwin execute --backend cuda` on one GPU.

Same shapes, micro-batches and precision as the scenario: bf16 parameters and activations, gradients summed over the micro-batches, Adam (fused) on an
fp32 master copy, scaled-dot-product (flash) attention, no dropout. With one addition of the framework's own best practice: parameters keep their
gradients between micro-batches, and the optimizer's copies use foreach kernels.

usage: eager_baseline.py SCENARIO.json [--steps N] [--warmup N]      prints one JSON object: step times in ms
       ... --serve      prints one such object per line read from standard input (cuda_speed.py alternates with it)
"""
import argparse
import json
import re
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {"gpt2-xl": dict(family="gpt", layers=48, hidden=1600, heads=25, vocabulary=50257, positions=1024),
           "gpt2": dict(family="gpt", layers=12, hidden=768, heads=12, vocabulary=50257, positions=1024)}


class GptBlock(nn.Module):
    def __init__(self, h, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        core = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, h)
        x = x + self.out(core)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, h, heads, kv, ffn):
        super().__init__()
        self.heads, self.kv, d = heads, kv, h // heads
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(h, n, bias=False) for n in (h, kv * d, kv * d, h))
        self.gate, self.up, self.down = nn.Linear(h, ffn, bias=False), nn.Linear(h, ffn, bias=False), nn.Linear(ffn, h, bias=False)

    def forward(self, x, cosine, sine):
        b, s, h = x.shape
        q = rotate(self.q(y := self.norm1(x)).view(b, s, self.heads, -1), cosine, sine).transpose(1, 2)
        k = rotate(self.k(y).view(b, s, self.kv, -1), cosine, sine).transpose(1, 2)
        v = self.v(y).view(b, s, self.kv, -1).transpose(1, 2)
        core = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(b, s, h)
        x = x + self.out(core)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(t, cosine, sine):
    low, high = t.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        h, self.gpt = m["hidden"], m["family"] == "gpt"
        self.token = nn.Embedding(m["vocabulary"], h)
        self.position = nn.Embedding(m["positions"], h) if self.gpt else None
        self.d = h // m["heads"]
        self.blocks = nn.ModuleList(GptBlock(h, m["heads"]) if self.gpt else LlamaBlock(h, m["heads"], m["kv_heads"], m["ffn"])
                                    for _ in range(m["layers"]))
        self.norm = nn.LayerNorm(h) if self.gpt else nn.RMSNorm(h, eps=1e-5)
        self.head = nn.Linear(h, m["vocabulary"], bias=False)
        if m.get("tied", "preset" in m):
            self.head.weight = self.token.weight

    def forward(self, ids, targets):
        s = ids.shape[1]
        x = self.token(ids)
        if self.gpt:
            x = x + self.position.weight[:s]
            for block in self.blocks:
                x = block(x)
        else:
            angle = torch.arange(s, device=ids.device)[:, None] * 10000.0 ** (-torch.arange(0, self.d, 2, device=ids.device) / self.d)
            cosine, sine = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
            for block in self.blocks:
                x = block(x, cosine, sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    text = open(args.scenario).read()
    scenario = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    shape = dict(scenario["model"])
    shape.update(PRESETS.get(shape.get("preset", ""), {}))
    batch = scenario["batch"]
    m, b, s = batch["micro_batches"], batch["micro_batch_size"], batch["sequence_length"]
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda")
    with torch.device(device):
        model = Model(shape).to(torch.bfloat16)
    params = [p for p in model.parameters()]
    masters = [p.detach().float() for p in params]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.Adam(masters, lr=1e-3, fused=True)
    ids = torch.randint(0, 256, (m, b, s + 1), device=device)

    def one_step():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(m):
            (model(ids[i, :, :-1], ids[i, :, 1:]) / m).backward()
        torch._foreach_copy_([master.grad for master in masters], [p.grad for p in params])
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(params, masters)
        for p in params:
            p.grad = None
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def one_round():
        for _ in range(args.warmup):
            one_step()
        times = [round(one_step(), 3) for _ in range(args.steps)]
        print(json.dumps({"schema": "steptwin.eager_baseline/1", "scenario": scenario["name"], "torch": torch.__version__,
                          "device": torch.cuda.get_device_name(), "step_ms": times}), flush=True)

    if not args.serve:
        one_round()
    for _ in sys.stdin if args.serve else ():
        one_round()


if __name__ == "__main__":
    main()
