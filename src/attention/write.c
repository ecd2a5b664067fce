/* Write gates: write-gated keys and values (WG-KV), arXiv 2512.17452 (ops/term/admit.h). A token's gate says how much
 * of it stays once it has left the window of the newest tokens. The paper's gate is a small network on the key's state;
 * here it is a projection of the layer's input. With temperature t and noise n it is a relaxed Bernoulli variable in
 * training, as dynamic memory sparsification trains its decisions (DMS, arXiv 2506.05345, section 3):
 *   s = sigmoid((x w^T + b + n) / t),   n = log(u / (1 - u)), u uniform in (0, 1); without training n = 0 */
#include "attention/keyed.h"
#include "ops/term/admit.h"

struct write_settings {
  bool enabled, noise;
  int window;
  double loss, keep, temperature;
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

WN_SCORE_KEYED(admit)

static const struct wn_score_kind write_kind = {
    .name = "write gates", .id = WN_SCORE_WRITE, .traits = KEYED_TRAITS, WN_SCORE_KEYED_OF(admit)};

static void write_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &write_kind, .number = {(double)write_of(config)->window}};
}

WN_KEYED_INPUT(write, write_kind, WN_INPUT_LOG_SIGMOID, 3, .kept_loss = write_loss, .relaxed = write_relaxed)

static const char *const write_cases[] = {
    "{\"write\":{\"window\":8}}",
    "{\"write\":{\"window\":1,\"temperature\":0.5}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_write = {
    .name = "write",
    .summary = "write gates (WG-KV, Huang et al. 2025)",
    .init = write_init,
    WN_KEYED_ENTRY(write, write_kind),
};
