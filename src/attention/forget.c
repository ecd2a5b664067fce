/* Forget gates: the Forgetting Transformer (FoX), Lin et al., ICLR 2025 (ops/term/forget.h). In the paper each head has
 * a gate; here each key-value head, since what is forgotten is its keys. Biases start at 0, as the authors' code has
 * them. The model needs no other positions. */
#include "attention/keyed.h"
#include "ops/term/forget.h"

struct forget_settings {
  bool enabled;
};

WN_MECHANISM_SETTINGS(forget)

#define AT(member) offsetof(struct forget_settings, member)

static const struct wn_field forget_fields[] = {
    WN_KEY("forget.enabled", BOOL, AT(enabled),
           "each token forgets earlier ones by a gate of its own per key-value head"),
};

static bool forget_is_enabled(const wn_attention_config *config) {
  return forget_of(config)->enabled;
}

WN_SCORE_KEYED(forget)

static const struct wn_score_kind forget_kind = {
    .name = "forget gates", .id = WN_SCORE_FORGET, .traits = KEYED_TRAITS, .sums = true, WN_SCORE_KEYED_OF(forget)};

static void forget_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)config, (void)layer, (void)head_size;
  out->map[out->maps++] = (struct wn_score_map){.kind = &forget_kind};
}

WN_KEYED_INPUT(forget, forget_kind, WN_INPUT_LOG_SIGMOID_SUMS, 0, .kept_loss = NULL)

static const char *const forget_cases[] = {
    "{\"forget\":true}",
    NULL,
};

const struct wn_mechanism wn_mechanism_forget = {
    .name = "forget",
    .summary = "forget gates (Lin et al. 2025, Forgetting Transformer)",
    WN_KEYED_ENTRY(forget, forget_kind),
};
