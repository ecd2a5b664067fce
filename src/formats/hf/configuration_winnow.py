"""The configuration of a winnow model for Hugging Face transformers. Written by `winnow convert --to hf`."""

from transformers import PretrainedConfig


class WinnowConfig(PretrainedConfig):
    """`winnow` is the model's configuration as winnow's own config.json has it; docs/recipes.md there says what each key
    does. The other keys repeat values that programs look for, under transformers' names.

    budgets: how many tokens each layer keeps: a number for all layers, one for each in a list (or "64,32,..."); None:
    everything. policy: which token is evicted; policy_options: "sinks" (streaming), "recent" (h2o), "per_kv_head".
    All three are arguments of the model's forward and of generate() too, which come first."""

    model_type = "winnow"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, winnow=None, budgets=None, policy=None, policy_options=None, **kwargs):
        own = dict(winnow or {})
        for theirs, ours in (("vocab_size", "vocab_size"), ("hidden_size", "width"), ("num_hidden_layers", "layers"),
                             ("num_attention_heads", "heads"), ("num_key_value_heads", "kv_heads"),
                             ("head_dim", "head_size"), ("intermediate_size", "ffn_width"),
                             ("max_position_embeddings", "context"), ("initializer_range", "init_std")):
            setattr(self, theirs, kwargs.pop(theirs, own.get(ours)))
        self.use_cache = kwargs.pop("use_cache", True)
        self.winnow = own
        self.budgets = budgets
        self.policy = policy
        self.policy_options = policy_options
        kwargs.setdefault("tie_word_embeddings", bool(own.get("tied", False)))
        super().__init__(**kwargs)
