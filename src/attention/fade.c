/* Retention gates: TRIM-KV (ops/term/fade.h). Each key's logits fade with its age. Biases start at 5: half is left
 * after some 100 tokens. The authors' gates have a hidden layer, and their logits fade in training alone: decoding is
 * plain attention over the keys that the gates leave (kv/policy/gates.c). */
#include "attention/keyed.h"
#include "ops/term/fade.h"

struct fade_settings {
  bool enabled, training_only;
  int hidden;
  double loss, keep;
};

WN_MECHANISM_SETTINGS(fade)

#define AT(member) offsetof(struct fade_settings, member)

static const struct wn_field fade_fields[] = {
    WN_KEY("fade.enabled", BOOL, AT(enabled), "a key's logits fade with its age, by a gate per key-value head"),
    WN_KEY("fade.loss", DOUBLE, AT(loss), "coefficient of what the gates retain, a share, in the loss; 0: none",
           .min = 0, .max = 1e6),
    WN_KEY("fade.keep", DOUBLE, AT(keep), "the share that the loss lets be; 0: it always asks for less", .min = 0,
           .max = 1),
    WN_KEY("fade.hidden", INT, AT(hidden), "units of a hidden layer before the gates; 0: none", .min = 0,
           .max = 1 << 20),
    WN_KEY("fade.training_only", BOOL, AT(training_only),
           "logits fade in training alone; later gates only choose what is evicted"),
};

static bool fade_is_enabled(const wn_attention_config *config) {
  return fade_of(config)->enabled;
}

static void fade_loss(const wn_attention_config *config, double *coefficient, double *keep) {
  *coefficient = fade_of(config)->loss, *keep = fade_of(config)->keep;
}

static int64_t fade_hidden(const wn_attention_config *config) {
  return fade_of(config)->hidden;
}

WN_SCORE_KEYED(fade)

static const struct wn_score_kind fade_kind = {
    .name = "retention gates", .id = WN_SCORE_FADE, .traits = KEYED_TRAITS, .scales = true, WN_SCORE_KEYED_OF(fade)};

static void fade_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  out->map[out->maps++] =
      (struct wn_score_map){.kind = &fade_kind, .idle = fade_of(config)->training_only, .gates = 1, .s_gate = 1};
}

WN_KEYED_INPUT(fade, fade_kind, WN_INPUT_LOG_SIGMOID, 5, .kept_by_age = true, .kept_loss = fade_loss,
               .hidden = fade_hidden, .hidden_weight = "attn.fade.hidden.weight",
               .hidden_bias = "attn.fade.hidden.bias")

static const char *const fade_cases[] = {
    "{\"fade\":true}",
    "{\"fade\":{\"training_only\":true}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_fade = {
    .name = "fade",
    .summary = "retention gates (TRIM-KV)",
    WN_KEYED_ENTRY(fade, fade_kind),
};
