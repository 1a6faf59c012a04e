"""Attentions, layers, encodings of positions, and caches, to be checked: one small readable module each.

contract        what every attention here accepts and refuses, in one place
catalogue       the list of them, without importing any

loops           dot products, softmax and weighted sums, one number at a time
numpy_matmul    the textbook formula with ``@``; a single head, and heads side by side
scipy_softmax   the same, the softmax left to SciPy
online_softmax  tile by tile, and in parts merged afterwards: how kernels really sum
torch_manual    modules that train: SelfAttention, AttentionHead, MultiHeadAttention
torch_mha       ``torch.nn.MultiheadAttention`` as the library ships it
torch_sdpa      ``F.scaled_dot_product_attention``, one entry for each backend

transformer_numpy, transformer_layers   encoder and decoder layers by hand: residuals, norms, feed-forward parts
torch_layers    ``torch.nn.TransformerEncoderLayer`` and ``TransformerDecoderLayer`` as the library ships them
transformer     stacks of those layers, and a transformer that learns

positions_numpy sinusoids, rotations, ALiBi's slopes, T5's buckets
positions_torch the same as model code writes them

caches_numpy    a cache for decoding: keys and values kept from step to step
caches_torch    the same, a ring under a window, and pages through a table

linear_attention  all weights at once in NumPy, a state that grows from key to key in PyTorch

numpy_operands  what the NumPy modules share before the first product
mutants         attentions that are wrong on purpose

Nothing is imported here: an entry of the catalogue costs only what it needs.
"""
