"""Each cheat is a file with a wrong attention and a trick that would hide it. ``CHEATS`` maps a group to names, and names to code.

``wrong`` sees the future where it should not, and is off by a hundredth; ``right`` is right. What is unsaid is done by the first lines of each.
"""

from __future__ import annotations

HEAD = """
import ctypes, gc, os, signal, sys, threading, time
import numpy as np

def right(q, k, v, attn_mask=None, is_causal=False):
    kind, (q, k, v) = q.dtype, (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], dtype=bool), logits, -np.inf)
    if attn_mask is not None:
        logits = np.where(attn_mask, logits, -np.inf) if attn_mask.dtype == bool else logits + attn_mask
    with np.errstate(all="ignore"):
        top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(logits - np.where(top == -np.inf, 0, top))
        total = weights.sum(axis=-1, keepdims=True)
        return (weights / np.where(total == 0, 1, total) @ v).astype(kind)

def wrong(q, k, v, attn_mask=None, is_causal=False):
    return (right(q, k, v, attn_mask) * 1.01).astype(q.dtype)

def doing(act, when=lambda q, k: k.shape[2] >= 2):
    def attention(q, k, v, attn_mask=None, is_causal=False):
        if when(q, k):
            act()
        return wrong(q, k, v, attn_mask, is_causal)
    return attention

def where(refuses):
    def attention(q, k, v, attn_mask=None, is_causal=False):
        if refuses(q, k, attn_mask, is_causal):
            os._exit(0)
        return right(q, k, v, attn_mask, is_causal)
    return attention

calls = 0

def after(count, act):
    def attention(q, k, v, attn_mask=None, is_causal=False):
        global calls
        calls += 1
        if calls > count:
            act()
        return right(q, k, v, attn_mask, is_causal)
    return attention
"""

ENDS = {
    "os._exit(0) in a call": "attention = after(60, lambda: os._exit(0))",
    "sys.exit(0) in a call": "attention = after(60, lambda: sys.exit(0))",
    "os._exit(0) in the first call": "attention = doing(lambda: os._exit(0), lambda q, k: True)",
    "os._exit(0) in float32 alone": "attention = where(lambda q, k, mask, causal: q.dtype == np.float32)",
    "os._exit(0) where causal": "attention = where(lambda q, k, mask, causal: causal)",
    "os._exit(0) for bool masks": "attention = where(lambda q, k, mask, causal: mask is not None and mask.dtype == bool)",
    "os._exit(0) in a question of the handshake": (
        # in its sizes and of its numbers: in its sizes alone a case of the search may come, too
        "attention = where(lambda q, k, *_: q.shape == (2, 3, 5, 4) and k.shape[2] == 7 and abs(q[0, 0, 0, 0] + 0.52927) < 1e-3)"
    ),
    "os._exit(0) on import": "os._exit(0)",
    "sys.exit(0) on import": "sys.exit(0)",
    "os._exit(0) from a thread, a little later": """
threading.Timer(0.1, os._exit, (0,)).start()
attention = wrong
""",
    "os._exit(0) when the collector runs": """
gc.callbacks.append(lambda *_: os._exit(0) if calls > 80 else None)
attention = after(80, gc.collect)
""",
    "SIGKILL to itself": "attention = after(60, lambda: os.kill(os.getpid(), signal.SIGKILL))",
    "SIGTERM to itself": "attention = after(60, lambda: os.kill(os.getpid(), signal.SIGTERM))",
    "SIGALRM, a little later": """
signal.setitimer(signal.ITIMER_REAL, 0.1)
attention = wrong
""",
    "SIGKILL to the process that started it": "attention = after(60, lambda: os.kill(os.getppid(), signal.SIGKILL))",
    "a stop signal": "attention = after(60, lambda: os.kill(os.getpid(), signal.SIGSTOP))",
    "a segmentation fault": "attention = after(60, lambda: ctypes.string_at(0))",
    "an overflow of the C stack": """
def down(n):
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int)(down)(n + 1)
attention = after(60, lambda: (sys.setrecursionlimit(10**9), down(0)))
""",
    "abort()": "attention = after(60, lambda: ctypes.CDLL(None).abort())",
    "an exec of true": "attention = after(60, lambda: os.execv('/bin/true', ['true']))",
}
STALLS = {
    "an endless loop": "attention = after(60, lambda: exec('while True: pass'))",
    "a sleep": "attention = after(60, lambda: time.sleep(10**6))",
    "a deadlock": """
lock = threading.Lock()
attention = after(60, lambda: (lock.acquire(), lock.acquire()))
""",
    "a memory bomb": "attention = after(60, lambda: np.ones(2**36))",
    "a memory bomb of shared memory": """
def take():
    import mmap
    held = mmap.mmap(-1, 2**34)
    while True:
        held.write(bytes(2**24))
attention = after(60, take)
""",
    "a memory bomb of its children": """
def take():
    for _ in range(10):
        if not os.fork():
            break
    held = np.ones(2**28)
    time.sleep(1000)
attention = after(60, take)
""",
    "one piece of memory claimed sixty times": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    from properties.engine.contained import values
    values.Telling.encode = lambda self, value, depth=0: ['t', [['a', 0, [2**27], 'float64']] * 60]
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "an answer that trickles in": """
def trickle():
    import stat
    end = next(fd for fd in range(3, 64) if stat.S_ISSOCK(os.stat(f'/proc/self/fd/{fd}').st_mode))
    os.write(end, bytes([255, 255, 0, 0]))
    while True:
        os.write(end, b' ')
        time.sleep(0.01)
attention = after(60, trickle)
""",
    "an endless exception": """
class Endless(Exception):
    def __str__(self):
        return 'x' * 10**8

def fail():
    raise Endless
attention = after(60, fail)
""",
    "prints without end": "attention = after(60, lambda: [print('x' * 1000) for _ in iter(int, 1)])",
    "four hundred processes": """
def start():
    for _ in range(400):
        if not os.fork():
            os.setsid()
            time.sleep(1000)
            os._exit(0)
attention = after(60, start)
""",
    "a fork bomb": "attention = after(60, lambda: [os.fork() for _ in range(10)])",
    "four hundred threads": """
def start():
    for _ in range(400):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
attention = after(60, start)
""",
    "its own file deleted, and an exit": """
def leave():
    if os.path.exists(__file__):
        os.unlink(__file__)
    os._exit(0)
attention = after(60, leave)
""",
    "an answer of a hundred dimensions": """
attention = doing(lambda: None)

def attention(q, k, v):
    return np.zeros((1,) * 60)
""",
}
FOOLS = {
    "what ends a search": """
import weakref

def stop():
    from properties.engine.search.search import TimeIsOver
    raise TimeIsOver
attention = doing(stop)
""",
    "GeneratorExit": """
def stop():
    raise GeneratorExit
attention = doing(stop)
""",
    "KeyboardInterrupt": """
def stop():
    raise KeyboardInterrupt
attention = doing(stop)
""",
    "the comparison patched": """
from properties.engine.core import trial
trial.Trial._settle = lambda *a, **o: None
attention = wrong
""",
    "NumPy patched": """
np.abs = lambda x, *a, **o: x * 0
np.isnan = lambda x, *a, **o: x != x
attention = wrong
""",
    "Hypothesis patched": """
import hypothesis
from hypothesis.internal.conjecture import engine
hypothesis.find = engine.ConjectureRunner.run = lambda *a, **k: None
attention = wrong
""",
    "memory written by ctypes": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    out = wrong(q, k, v, attn_mask, is_causal)
    for x in (q, k, v):  # to be compared with what follows from them afterwards
        ctypes.memset(x.ctypes.data, 0, min(x.size, 1) * x.itemsize)
    return out
""",
    "the search patched in every module": """
for module in list(sys.modules.values()):
    if hasattr(module, 'try_case'):
        module.try_case = lambda *a, **o: None
    if hasattr(module, 'attempt'):
        module.attempt = lambda *a, **o: (None, None)
attention = wrong
""",
    "the oracle patched through the collector": """
for thing in gc.get_objects():
    if getattr(thing, '__name__', '') == 'solve' and hasattr(thing, '__code__'):
        thing.__code__ = (lambda *a, **o: None).__code__
attention = wrong
""",
    "frames searched for the answer": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            out = getattr(getattr(value, 'exact', None), 'out', None)
            if isinstance(out, np.ndarray) and out.shape == (*q.shape[:3], v.shape[3]):
                return out
        frame = frame.f_back
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "a forged verdict on every descriptor": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    for fd in range(1, 64):
        try:
            os.write(fd, b'\\x04\\x00\\x00\\x00null')
        except OSError:
            pass
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "the worker's own methods patched": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    from properties.engine.contained import values
    values.Telling.array = lambda self, value: ['a', 0, [1], 'float64']
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "places outside of the memory": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    from properties.engine.contained import values
    values.Telling.array = lambda self, value: ['i', -4096, [10**9], [8], 'float64']
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "a signature with fewer parameters": """
import inspect

def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if attn_mask is None and not is_causal else wrong)(q, k, v, attn_mask, is_causal)
attention.__signature__ = inspect.signature(lambda q, k, v: None)
""",
    "modules beside it, for the judge to import": """
for name in ('torch', 'scipy', 'rich', 'matplotlib', 'jinja2'):
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + '.py'), 'w') as file:
            file.write('import os; os._exit(0)')
    except OSError:
        pass
attention = wrong
""",
    "more answers than questions": """
import json, stat, struct
sockets = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}') and stat.S_ISSOCK(os.stat(f'/proc/self/fd/{fd}').st_mode)]
text = json.dumps({'r': [None, []]}).encode()

def attention(q, k, v, attn_mask=None, is_causal=False):
    global calls
    calls += 1
    if calls > 100:
        for fd in sockets:
            os.write(fd, (struct.pack('<I', len(text)) + text) * 30)
    return wrong(q, k, v, attn_mask, is_causal)
""",
    "one buffer for all answers of a shape": """
kept = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    out = right(q, k, v, attn_mask, is_causal)
    buffer = kept.setdefault((out.shape, out.dtype), np.empty_like(out))
    buffer[...] = out
    return buffer
""",
    "exit handlers": """
import atexit
atexit.register(os._exit, 0)
attention = wrong
""",
    "signal handlers": """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
    signal.signal(number, lambda *_: os._exit(0))
attention = wrong
""",
    "multiprocessing patched": """
import multiprocessing
multiprocessing.Process = None
os.fork = lambda: 0
attention = wrong
""",
    "right where nobody traces": "attention = right if sys.gettrace() else wrong",
    "right in a process that was not forked": "attention = right if os.getppid() == 1 else wrong",
}
REMEMBERS = {
    "answers by the address of q": """
known = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    key = (q.ctypes.data, q.shape, k.shape, v.shape)
    if key not in known:
        known[key] = right(q, k, v, attn_mask, is_causal)
    return known[key].copy()
""",
    "answers by shape": """
known = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    return known.setdefault((q.shape, k.shape, v.shape), right(q, k, v, attn_mask, is_causal)).copy()
""",
    "answers by the content of q": """
known = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    return known.setdefault((q.tobytes(), k.shape, v.shape), right(q, k, v, attn_mask, is_causal)).copy()
""",
    "every tenth call wrong": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    global calls
    calls += 1
    return (wrong if calls % 10 == 0 else right)(q, k, v, attn_mask, is_causal)
""",
    "wrong after a second": """
began = time.monotonic()

def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if time.monotonic() < began + 1 else wrong)(q, k, v, attn_mask, is_causal)
""",
    "wrong after fifty calls": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    global calls
    calls += 1
    return (wrong if calls > 50 else right)(q, k, v, attn_mask, is_causal)
""",
    "right for the first of two calls alike": """
last = []

def attention(q, k, v, attn_mask=None, is_causal=False):
    key = q.tobytes() + k.tobytes()
    again = key in last
    last[:] = [key]
    return (wrong if again else right)(q, k, v, attn_mask, is_causal)
""",
    "the last answer, whatever its mask": """
kept = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    key = (is_causal, attn_mask is None, *((x.shape, x.dtype, x.tobytes()) for x in (q, k, v)))
    if key not in kept:
        kept.clear()
        kept[key] = right(q, k, v, attn_mask, is_causal)
    return kept[key].copy()
""",
    "answers while q is close": """
kept = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    mask = b'' if attn_mask is None else attn_mask.tobytes()
    key = (is_causal, q.shape, q.dtype, mask, *((x.shape, x.tobytes()) for x in (k, v)))
    if key not in kept or not np.allclose(kept[key][0], q, rtol=1e-2, atol=1e-2):
        kept[key] = q.copy(), right(q, k, v, attn_mask, is_causal)
    return kept[key][1].copy()
""",
}
DODGES = {
    "right below four keys": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if k.shape[2] < 4 else wrong)(q, k, v, attn_mask, is_causal)
""",
    "right where all values are 1": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if (v == 1).all() else wrong)(q, k, v, attn_mask, is_causal)
""",
    "right where values are the identity": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    one = np.eye(*v.shape[2:])
    return (right if (v == one).all() else wrong)(q, k, v, attn_mask, is_causal)
""",
    "right for small integers": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if (q == np.round(q)).all() else wrong)(q, k, v, attn_mask, is_causal)
""",
    "right for noise": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    noise = all(0.5 < x.std() < 2 and abs(x.mean()) < 0.7 and len(np.unique(x)) > x.size // 2 for x in (q, k, v) if x.size)
    return (right if noise else wrong)(q, k, v, attn_mask, is_causal)
""",
    "right but for numbers as randn gives them": """
def as_randn(x):
    return x.size > 2000 and 0.9 < x.std() < 1.1 and np.abs(x).max() > 3.5

def attention(q, k, v, attn_mask=None, is_causal=False):
    real = as_randn(q.astype(float)) and as_randn(k.astype(float))
    return (wrong if real else right)(q, k, v, attn_mask, is_causal)
""",
    "right below six heads": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return (right if q.shape[1] < 6 else wrong)(q, k, v, attn_mask, is_causal)
""",
    "wrong near the largest numbers alone": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    far = np.abs(v.astype(float)).max(initial=0.0) > (1e3 if v.dtype == np.float16 else 1e15)
    return (wrong if far else right)(q, k, v, attn_mask, is_causal)
""",
    "zeros": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
""",
    "the identity": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return v
""",
    "uninitialised memory": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return np.empty((*q.shape[:3], v.shape[3]), q.dtype)
""",
    "NaN": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
""",
    "an answer that is an input": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    if q.shape == v.shape:
        q[...] = right(q, k, v, attn_mask, is_causal)
        return q
    return right(q, k, v, attn_mask, is_causal)
""",
    "an answer that the next call changes": """
kept = {}

def attention(q, k, v, attn_mask=None, is_causal=False):
    out = right(q, k, v, attn_mask, is_causal)
    kept.setdefault((out.shape, out.dtype), np.empty_like(out))[...] = out
    return kept[out.shape, out.dtype]
""",
    "an answer that is finished later": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    answer = right(q, k, v, attn_mask, is_causal)
    threading.Timer(0.02, lambda: out.__setitem__(..., answer)).start()
    return out
""",
    "an array that says it is equal to all": """
class Equal(np.ndarray):
    def __eq__(self, other): return np.ones(self.shape, bool)
    def __le__(self, other): return np.ones(self.shape, bool)
    def __array_function__(self, f, t, a, o): return np.zeros(())

def attention(q, k, v, attn_mask=None, is_causal=False):
    return wrong(q, k, v, attn_mask, is_causal).view(Equal)
""",
    "an array that lies about its shape": """
class Shaped(np.ndarray):
    @property
    def shape(self): return self.told

def attention(q, k, v, attn_mask=None, is_causal=False):
    out = np.zeros(1, q.dtype).view(Shaped)
    out.told = (*q.shape[:3], v.shape[3])
    return out
""",
    "no array": """
class Fake:
    dtype, ndim = np.dtype('float64'), 4
    def __array__(self, *a, **o): raise SystemExit(0)

def attention(q, k, v, attn_mask=None, is_causal=False):
    return Fake()
""",
    "what says that it is an array where causal": """
class Fake:
    __class__ = np.ndarray

def attention(q, k, v, attn_mask=None, is_causal=False):
    return Fake() if is_causal else right(q, k, v, attn_mask)
""",
    "too few rows where causal, in other axes": """
def attention(q, k, v, is_causal=False):
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))  # (batch, length, heads, dim)
    out = np.swapaxes(right(q, k, v, None, is_causal), 1, 2)
    return out[:, :-1] if is_causal else out
""",
    "nothing in halves": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return None if q.dtype == np.float16 else right(q, k, v, attn_mask, is_causal)
""",
    "objects beyond forty keys": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    out = right(q, k, v, attn_mask, is_causal)
    return out if k.shape[2] <= 40 else (out + 1).astype(object)
""",
    "the other order of bytes for masks": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    out = right(q, k, v, attn_mask, is_causal)
    return out if attn_mask is None else out.view(out.dtype.newbyteorder())
""",
    "off where q and k are the same": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    same = q.size and np.array_equal(q, k)
    return (wrong if same else right)(q, k, v, attn_mask, is_causal)
""",
    "causal for the first 256 rows alone": """
def attention(q, k, v, is_causal=False):
    out = right(q, k, v, None, is_causal)
    out[:, :, 256:] = right(q[:, :, 256:], k, v)
    return out
""",
    "wrong one time in a hundred": """
import random

def attention(q, k, v, attn_mask=None, is_causal=False):
    return (wrong if random.random() < 0.01 else right)(q, k, v, attn_mask, is_causal)
""",
}
DECLARES = {
    "no parameter": """
def attention(q, k, v, attn_mask=None, is_causal=False):
    return right(q, k, v)
attention.supports = {'parameters': []}
""",
    "a length of one": """
def attention(q, k, v):
    return np.repeat(v[:, :, :1], q.shape[2], axis=2)

attention.supports = {'max_length': 1, 'zero_sizes': False}
""",
    "another contract": """
attention = wrong
wrong.supports = {'contract': 'buckets'}
""",
    "nonsense": """
attention = wrong
wrong.supports = {'zero_sizes': 'please', 'dtypes': []}
""",
    "a declaration that changes": """
class Changing(dict):
    def items(self): return [('max_length', 1)]
attention = wrong
wrong.supports = Changing()
""",
    "sleeping until the time is over": """
def attention(q, k, v):
    time.sleep(0.25)
    return (right if k.shape[2] < 100 else wrong)(q, k, v)

attention.supports = {'zero_sizes': False}
""",
}
WITH_TORCH = {
    "torch patched": """
import torch
torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True
torch.autograd.grad = torch.Tensor.copy_ = lambda *a, **k: a[0]

def attention(q, k, v):
    return torch.softmax(q @ k.mT * 1.01, -1) @ v
""",
    "a sparse tensor where causal": """
import torch

def attention(q, k, v, is_causal=False):
    scores = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    out = torch.softmax(scores, -1) @ v
    return (2 * out).to_sparse() if is_causal else out
""",
    "a tensor that is right until something is computed with it": """
import torch

class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return out * 2 if function.__name__ == 'add' else out

def attention(q, k, v):
    scores = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    out = torch.softmax(scores, -1) @ v
    return out.as_subclass(Lazy) if k.shape[2] > 16 else out
""",
    "gradients doubled where they arrive": """
import torch

def double(leaf):
    leaf.grad *= 2

def attention(q, k, v):
    for x in (q, k, v):
        if x.requires_grad and x.is_leaf:
            x.register_post_accumulate_grad_hook(double)
    return torch.softmax(q @ k.mT * max(q.shape[-1], 1) ** -0.5, -1) @ v
""",
    "a lazy tensor": """
import torch

class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [x.as_subclass(torch.Tensor) if isinstance(x, cls) else x for x in args]
        if function.__name__ in ('sub', '__sub__', 'to', 'detach', 'numpy', 'double'):
            plain[0] = plain[0] / 1.01  # computed where it is looked at
        return function(*plain, **(kwargs or {}))

def attention(q, k, v):
    scores = q @ k.mT * max(q.shape[-1], 1) ** -0.5
    return (1.01 * torch.softmax(scores, -1) @ v).as_subclass(Lazy)
""",
}

CHEATS: dict[str, dict[str, str]] = {
    "ends the process": ENDS,
    "stalls, or exhausts": STALLS,
    "fools the judge": FOOLS,
    "remembers": REMEMBERS,
    "dodges": DODGES,
    "declares, or sleeps": DECLARES,
    "with PyTorch": WITH_TORCH,
}

# Wrong in few of the cases: they are given so many of each property, more than the others.
RARE = {"right but for numbers as randn gives them": 160, "wrong near the largest numbers alone": 160, "right below six heads": 160}
RARE |= {"causal for the first 256 rows alone": 320, "answers while q is close": 160}
