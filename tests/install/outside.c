/* A program outside the source tree that is built against the installed library. */
#include <stdio.h>
#include <winnow/winnow.h>

int main(void) {
  wn_context *ctx = NULL;
  wn_model *model = NULL;
  wn_model_config config;
  wn_model_config_init(&config);
  config.vocab_size = 17, config.context = 8, config.layers = 2, config.width = 16, config.heads = 2;
  config.attention.selective.enabled = true;
  float logits[17];
  const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  wn_session *session = NULL;
  int bad = wn_context_create(NULL, &ctx) || wn_model_config_resolve(ctx, &config) ||
            wn_model_create(ctx, &config, 1, &model) || wn_session_create(ctx, model, NULL, &session) ||
            wn_session_feed(ctx, session, tokens, 8, 0, logits);
  if (bad)
    fprintf(stderr, "%s\n", ctx ? wn_context_error(ctx) : "no context");
  else
    printf("%llu parameters, logit %g\n", (unsigned long long)wn_model_parameter_count(model), logits[0]);
  wn_session_destroy(session);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return bad;
}
