#include "sampling.h"

#include <stddef.h>
#include "ui.h"

void cli_sampling_init(struct cli_sampling *s) {
  wn_sampling defaults;
  wn_sampling_init(&defaults);
  *s = (struct cli_sampling){defaults.temperature, defaults.top_p, defaults.top_k, defaults.seed};
}

void cli_sampling_apply(const struct cli_sampling *s, wn_sampling *out) {
  wn_sampling_init(out);
  out->temperature = s->temperature;
  out->top_p = s->top_p;
  out->top_k = (int)s->top_k;
  out->seed = s->seed;
}

int cli_dialogue_choose(wn_context *ctx, const struct cli_dialogue *given, const char *model, const wn_tokenizer *tok,
                        struct cli_dialogue_choice *out) {
  const char *own = wn_tokenizer_chat_template(tok);
  *out = (struct cli_dialogue_choice){0};
  out->chat = given->name ? wn_chat_template_find(given->name) : own ? wn_chat_template_recognise(own) : NULL;
  if (!out->chat)
    return own ? cli_error("%s: its chat template is none of those known here; choose one with --template", model)
               : cli_error("%s: the model has no chat template; choose one with --template", model);
  if (given->system) {
    out->system = given->system[0] ? given->system : NULL;
    return 0;
  }
  if (!own || given->name) return 0;
  wn_status status = wn_chat_default_system(ctx, out->chat, own, &out->owned);
  out->system = out->owned;
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

void cli_dialogue_clear(struct cli_dialogue_choice *choice) {
  wn_text_free(choice->owned);
  *choice = (struct cli_dialogue_choice){0};
}
