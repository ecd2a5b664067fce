#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ui.h"

void cli_sampling_init(struct cli_sampling *s) {
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  *s = (struct cli_sampling){.temperature = o.sampling.temperature,
                             .top_p = o.sampling.top_p,
                             .top_k = o.sampling.top_k,
                             .seed = o.sampling.seed,
                             .min_p = o.sampling.min_p,
                             .repetition_penalty = o.repetition_penalty};
}

int cli_sampling_check(const char *command, struct cli_sampling *s, const wn_model *model) {
  const int count = s->logit_bias.count;
  const int64_t V = wn_model_config_get(model)->vocab_size;
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  wn_generate_options_declared(model, &o);
  if (!s->given.temperature) s->temperature = o.sampling.temperature;
  if (!s->given.top_p) s->top_p = o.sampling.top_p;
  if (!s->given.top_k) s->top_k = o.sampling.top_k;
  if (!s->given.min_p) s->min_p = o.sampling.min_p;
  if (!s->given.repetition_penalty) s->repetition_penalty = o.repetition_penalty;
  if (count == 0) return 0;
  s->biases = malloc((size_t)count * sizeof *s->biases);
  if (!s->biases) return cli_error("out of memory");
  for (int i = 0; i < count; i++) {
    const char *text = s->logit_bias.items[i];
    char *after, *end = NULL;
    const long long id = strtoll(text, &after, 10);
    const double bias = *after == '=' ? strtod(after + 1, &end) : 0;
    if (after == text || *after != '=' || end == after + 1 || *end || id < 0 || id >= V || isnan(bias) ||
        bias == INFINITY)
      return cli_usage_error(command,
                             "--logit-bias: \"%s\" is not ID=X with a token from 0 to %lld and a number or -inf", text,
                             (long long)V - 1);
    s->biases[i] = (wn_logit_bias){(int32_t)id, (float)bias};
  }
  return 0;
}

void cli_sampling_apply(const struct cli_sampling *s, wn_model *draft, wn_generate_options *out) {
  out->sampling = (wn_sampling){
      .temperature = s->temperature, .top_p = s->top_p, .top_k = (int)s->top_k, .seed = s->seed, .min_p = s->min_p};
  out->repetition_penalty = s->repetition_penalty;
  out->draft_model = draft;
  out->draft_tokens = s->draft > 0 || !draft ? (int)s->draft : CLI_DRAFT_BY_MODEL;
  out->presence_penalty = s->presence_penalty;
  out->frequency_penalty = s->frequency_penalty;
  out->biases = s->biases;
  out->bias_count = s->logit_bias.count;
}

void cli_sampling_clear(struct cli_sampling *s) {
  free(s->biases);
  s->biases = NULL;
  cli_list_clear(&s->logit_bias);
}

int cli_ids_add(struct cli_ids *ids, const int32_t *more, size_t count) {
  if (CLI_GROW(&ids->data, ids->count, count, &ids->room)) return 1;
  if (count) memcpy(ids->data + ids->count, more, count * sizeof *ids->data);
  ids->count += count;
  return 0;
}

int cli_dialogue_choose(wn_context *ctx, const struct cli_dialogue *given, const char *model, const wn_tokenizer *tok,
                        struct cli_dialogue_choice *out) {
  const char *own = wn_tokenizer_chat_template(tok);
  *out = (struct cli_dialogue_choice){0};
  out->chat = given->name ? wn_chat_template_find(given->name) : own ? wn_chat_template_recognise(own) : NULL;
  if (!out->chat && !own) return cli_error("%s: the model has no chat template; choose one with --template", model);
  if (!out->chat) { /* encoding with it says why it cannot be read */
    const wn_chat_message message = {WN_CHAT_USER, "?"};
    int32_t *ids = NULL;
    size_t n;
    wn_chat_encode(ctx, tok, wn_chat_template_find("own"), &message, 1, true, &ids, &n);
    wn_tokens_free(ids);
    return cli_error("%s: %s; choose another with --template", model, wn_context_error(ctx));
  }
  if (own && !given->name) {
    const wn_status status = wn_chat_default_system(ctx, out->chat, own, &out->owned);
    if (status != WN_OK) return cli_fail(ctx, status);
  }
  /* "" is no message; where the template would write its own, an empty one. */
  out->system = !given->system ? out->owned : given->system[0] || out->owned ? given->system : NULL;
  return 0;
}

void cli_dialogue_clear(struct cli_dialogue_choice *choice) {
  wn_text_free(choice->owned);
  *choice = (struct cli_dialogue_choice){0};
}
