/* The files from which training resumes: the length of state.json in two bytes, that file, then optimizer.safetensors,
 * for a model with segment recurrence and spans at step 0. What loads is saved, loads again, and can make a step. */
#include "fuzz/fuzz.h"

#include "model/model.h"
#include "train/checkpoint.h"
#include "winnow/train.h"

struct made {
  wn_model *model;
  wn_trainer *trainer;
};

static void make(wn_context *ctx, wn_recipe *recipe, struct made *m) {
  wn_recipe_init(recipe);
  wn_model_config *c = &recipe->model;
  c->vocab_size = 8, c->context = 4, c->layers = 1, c->width = 4, c->heads = 1, c->ffn_width = 4, c->recurrence = 4;
  c->position = WN_POS_NONE;
  c->attention.relative.enabled = true;
  c->attention.span.enabled = true, c->attention.span.limit = 4;
  recipe->train.batch = 2;
  recipe->train.steps = 4;
  if (wn_model_create(ctx, c, 1, &m->model) != WN_OK || wn_trainer_create(ctx, m->model, &recipe->train, &m->trainer)) {
    fprintf(stderr, "%s\n", wn_context_error(ctx));
    abort();
  }
}

static void clear(struct made *m) {
  wn_trainer_destroy(m->trainer);
  wn_model_destroy(m->model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  const uint8_t *state;
  const size_t n = fuzz_part(&data, &size, &state);
  fuzz_put("state.json", state, n);
  fuzz_put("optimizer.safetensors", data, size);
  wn_recipe recipe;
  struct made m, again;
  struct wn_run_state found, back;
  make(ctx, &recipe, &m);
  if (wn_checkpoint_load(ctx, fuzz_path(""), m.trainer, &found) != WN_OK) {
    fuzz_refused(ctx);
  } else {
    static const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    wn_train_progress progress;
    HOLDS(wn_checkpoint_save(ctx, fuzz_path("saved"), &recipe, NULL, m.trainer) == WN_OK);
    make(ctx, &recipe, &again);
    HOLDS(wn_checkpoint_load(ctx, fuzz_path("saved"), again.trainer, &back) == WN_OK);
    HOLDS(found.step == back.step && found.tokens == back.tokens && !strcmp(found.moments, back.moments));
    if (wn_trainer_step(ctx, again.trainer, tokens, tokens, NULL, &progress) != WN_OK) fuzz_refused(ctx);
    clear(&again);
  }
  clear(&m);
  return 0;
}
