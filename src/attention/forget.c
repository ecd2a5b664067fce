/* Forget gates: the Forgetting Transformer (FoX), Lin et al., ICLR 2025 (ops/term/forget.h). Each key-value head has a
 * gate, since what is forgotten is its keys; with per_query_head each head, as in the paper. Biases start at 0, as the
 * authors' code has them. The model needs no other positions. */
#include "attention/keyed.h"
#include "ops/term/forget.h"

struct forget_settings {
  bool enabled, per_query_head;
};

WN_MECHANISM_SETTINGS(forget)

#define AT(member) offsetof(struct forget_settings, member)

static const struct wn_field forget_fields[] = {
    WN_KEY("forget.enabled", BOOL, AT(enabled),
           "each token forgets earlier ones by a gate of its own per key-value head"),
    WN_KEY("forget.per_query_head", BOOL, AT(per_query_head),
           "a gate for each head, also where several share a key-value head"),
};

static bool forget_is_enabled(const wn_attention_config *config) {
  return forget_of(config)->enabled;
}

WN_SCORE_KEYED(forget)

static const struct wn_score_kind forget_kind = {
    .name = "forget gates", .id = WN_SCORE_FORGET, .traits = KEYED_TRAITS, .sums = true, WN_SCORE_KEYED_OF(forget)};

static void forget_fill(const wn_attention_config *config, int64_t layer, int64_t head_size, struct wn_attention *out) {
  (void)layer, (void)head_size;
  const int64_t gates = forget_of(config)->per_query_head && out->Hkv > 0 ? out->H / out->Hkv : 1;
  out->map[out->maps++] = (struct wn_score_map){.kind = &forget_kind, .gates = gates, .s_gate = 1};
}

WN_KEYED_INPUT(forget, forget_kind, WN_INPUT_LOG_SIGMOID_SUMS, 0, .kept_loss = NULL)

static const char *const forget_cases[] = {
    "{\"forget\":{\"per_query_head\":true}}",
    NULL,
};

const struct wn_mechanism wn_mechanism_forget = {
    .name = "forget",
    .summary = "forget gates (Lin et al. 2025, Forgetting Transformer)",
    WN_KEYED_ENTRY(forget, forget_kind),
};
