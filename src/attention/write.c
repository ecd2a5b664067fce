/* Write gates: write-gated keys and values (WG-KV), arXiv 2512.17452 (ops/term/admit.h). A token's gate says how much
 * of it stays once it has left the window of the newest tokens. With `keys` it is the paper's as its code has it, a
 * network of each key-value head on the head's key k (after QK-norm), before rotation R and after it:
 *   s = max(sigmoid(gelu([rms(k) r; rms(R k) s'] v^T + a) w^T + b), floor),   rms(x) = x / sqrt(mean(x^2) + 1e-6)
 * with gains r and s' that the heads share; the code has 4 D (Llama) or 1.5 D (Qwen3) hidden units and a floor of
 * 0.001. Without it is a projection of the layer's input. With temperature t and noise n it is a relaxed Bernoulli
 * variable in training, as dynamic memory sparsification trains its decisions (DMS, arXiv 2506.05345, section 3):
 *   s = sigmoid((x w^T + b + n) / t),   n = log(u / (1 - u)), u uniform in (0, 1); without training n = 0 */
#include "attention/keyed.h"
#include "base/error.h"
#include "ops/term/admit.h"

struct write_settings {
  bool enabled, noise, keys, training_only;
  int window, hidden;
  double loss, keep, temperature, floor;
};

WN_MECHANISM_SETTINGS(write)

#define AT(member) offsetof(struct write_settings, member)

static const struct wn_field write_fields[] = {
    WN_KEY("write.enabled", BOOL, AT(enabled), "each token is admitted beyond the window by a gate per key-value head"),
    WN_KEY("write.window", INT, AT(window), "the newest tokens, which the gates leave alone", .min = 1, .max = 1 << 24),
    WN_KEY("write.loss", DOUBLE, AT(loss), "coefficient of the mean gate in the loss; 0: none", .min = 0, .max = 1e6),
    WN_KEY("write.keep", DOUBLE, AT(keep), "the mean gate that the loss lets be; 0: it always asks for less", .min = 0,
           .max = 1),
    WN_KEY("write.temperature", DOUBLE, AT(temperature), "the gates' logits are divided by it", .min = 0.01,
           .max = 100),
    WN_KEY("write.noise", BOOL, AT(noise), "training adds noise to the gates' logits: each is 1 or 0 with its odds"),
    WN_KEY("write.keys", BOOL, AT(keys), "gates read the head's key before and after rotation, not the layer's input"),
    WN_KEY("write.hidden", INT, AT(hidden),
           "units of a hidden layer before the gates, with keys of each head's; 0: none", .min = 0, .max = 1 << 16),
    WN_KEY("write.floor", DOUBLE, AT(floor), "the least that a gate can be", .min = 0, .max = 0.5),
    WN_KEY("write.training_only", BOOL, AT(training_only),
           "gates weigh in training alone; later they only choose what is evicted"),
};

static void write_init(wn_attention_config *config) {
  write_set(config)->window = 128;
  write_set(config)->temperature = 1;
}

static bool write_is_enabled(const wn_attention_config *config) {
  return write_of(config)->enabled;
}

static void write_loss(const wn_attention_config *config, double *coefficient, double *keep) {
  *coefficient = write_of(config)->loss, *keep = write_of(config)->keep;
}

static void write_relaxed(const wn_attention_config *config, double *temperature, bool *noise) {
  *temperature = write_of(config)->temperature, *noise = write_of(config)->noise;
}

static int64_t write_hidden(const wn_attention_config *config) {
  return write_of(config)->hidden;
}

static bool write_from_keys(const wn_attention_config *config) {
  return write_of(config)->keys;
}

static double write_floor(const wn_attention_config *config) {
  return write_of(config)->floor;
}

static wn_status write_check(wn_context *ctx, const char *where, const wn_attention_config *config,
                             const struct wn_attention_shape *shape) {
  (void)shape;
  if (!write_of(config)->enabled || !write_of(config)->keys || write_of(config)->hidden > 0) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "%s: attention.write.keys needs a hidden layer (attention.write.hidden)", where);
}

WN_SCORE_KEYED(admit)

static const struct wn_score_kind write_kind = {
    .name = "write gates", .id = WN_SCORE_WRITE, .traits = KEYED_TRAITS, WN_SCORE_KEYED_OF(admit)};

static void write_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &write_kind,
                                                .number = {(double)write_of(config)->window},
                                                .idle = write_of(config)->training_only,
                                                .gates = 1,
                                                .s_gate = 1};
}

WN_KEYED_INPUT(write, write_kind, WN_INPUT_LOG_SIGMOID, 3, .kept_loss = write_loss, .relaxed = write_relaxed,
               .floor = write_floor, .from_keys = write_from_keys, .hidden = write_hidden,
               .hidden_weight = "attn.write.hidden.weight", .hidden_bias = "attn.write.hidden.bias",
               .key_gain = "attn.write.key.gain")

static const char *const write_cases[] = {
    "{\"write\":{\"window\":8}}",
    "{\"write\":{\"window\":1,\"temperature\":0.5}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_write = {
    .name = "write",
    .summary = "write gates (WG-KV, Huang et al. 2025)",
    .init = write_init,
    .check = write_check,
    WN_KEYED_ENTRY(write, write_kind),
};
