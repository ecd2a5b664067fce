/* A key without effect gets a warning that names the key which disables it. */
#include "told.h"

#include "train/idle.h"

/* Whether an empty recipe with these changes (separated by semicolons) gives the warning in `told`. */
static void warned(wn_context *ctx, const char *sets) {
  char text[1024], *rest = text;
  const char *list[8];
  int n = 0;
  snprintf(text, sizeof text, "%s", sets);
  for (char *one; (one = strtok_r(rest, ";", &rest)) && n < 8;) list[n++] = one;
  wn_recipe r;
  if (wn_recipe_load(ctx, NULL, list, n, &r) != WN_OK) fail_msg("%s: %s", sets, wn_context_error(ctx));
  *told = 0;
  must(ctx, wn_recipe_warn_idle(ctx, &r));
}

static void test_each(void **state) {
  (void)state;
  static const struct {
    const char *sets, *idle, *acts; /* idle: the warning with sets; none with acts as well */
  } cases[] = {
      {"model.tied=true;model.init.logits=normal 1",
       "model.init.logits is \"normal 1\" and has no effect: model.tied is true", "model.tied=false"},
      {"model.position=rope;model.init.positions=normal 1",
       "model.init.positions is \"normal 1\" and has no effect: model.position is \"rope\"",
       "model.attention.relative.enabled=true"},
      {"model.position=rope;model.init.positions=normal 1",
       "model.init.positions is \"normal 1\" and has no effect: model.position is \"rope\"", "model.position=learned"},
      {"model.attention.selective.head=1;model.attention.selective.bilinear=true",
       "model.attention.selective.head is 1 and has no effect: model.attention.selective.bilinear is true",
       "model.attention.selective.bilinear=false"},
      {"model.attention.selective.head=1;model.attention.selective.bilinear=true",
       "model.attention.selective.head is 1 and has no effect: model.attention.selective.bilinear is true",
       "train.init=old;train.adapt=true"},
      {"model.attention.span.init=0.5;model.attention.span.dynamic=true",
       "model.attention.span.init is 0.5 and has no effect: model.attention.span.dynamic is true",
       "model.attention.span.dynamic=false"},
      {"model.attention.exclusive.gate_init=0.5",
       "model.attention.exclusive.gate_init is 0.5 and has no effect: model.attention.exclusive.gate is false",
       "model.attention.exclusive.gate=true"},
      {"train.recompute=true;train.activation_dtype=bfloat16",
       "train.activation_dtype is \"bfloat16\" and has no effect: train.recompute is true", "train.recompute=false"},
      {"model.rope_theta=500", "model.rope_theta is 500 and has no effect: model.position is \"learned\"",
       "model.position=rope"},
      {"model.position=rope;model.rope_scaling.factor=4",
       "model.rope_scaling.factor is 4 and has no effect: model.rope_scaling.type is \"none\"",
       "model.rope_scaling.type=linear"},
      {"model.position=rope;model.rope_scaling.beta_fast=16",
       "model.rope_scaling.beta_fast is 16 and has no effect: model.rope_scaling.type is \"none\"",
       "model.rope_scaling.type=yarn"},
      {"model.attention.window_layers=10",
       "model.attention.window_layers is \"10\" and has no effect: model.attention.window is 0",
       "model.attention.window=8"},
      {"model.attention.selective.enabled=false;model.attention.selective.relu=false",
       "model.attention.selective.relu is false and has no effect: model.attention.selective.enabled is false",
       "model.attention.selective.enabled=true"},
      {"model.attention.selective.enabled=false;model.attention.selective.mem.eps=0.3",
       "model.attention.selective.mem.eps is 0.3 and has no effect: model.attention.selective.enabled is false",
       "model.attention.selective.enabled=true"},
      {"model.attention.selective.mem.enabled=false;model.attention.selective.mem.eps=0.3",
       "model.attention.selective.mem.eps is 0.3 and has no effect: model.attention.selective.mem.enabled is false",
       "model.attention.selective.mem.enabled=true"},
      {"model.attention.span.enabled=false;model.attention.span.loss=0.5",
       "model.attention.span.loss is 0.5 and has no effect: model.attention.span.enabled is false",
       "model.attention.span.enabled=true"},
      {"model.attention.fade.enabled=false;model.attention.fade.loss=0.5",
       "model.attention.fade.loss is 0.5 and has no effect: model.attention.fade.enabled is false",
       "model.attention.fade.enabled=true"},
      {"model.attention.write.enabled=true;model.attention.write.loss=0;model.attention.write.keep=0.5",
       "model.attention.write.keep is 0.5 and has no effect: model.attention.write.loss is 0",
       "model.attention.write.loss=0.1"},
      {"model.attention.write.enabled=true;model.attention.write.loss=0;train.mem.from_step=5",
       "train.mem.from_step is 5 and has no effect: model.attention.selective.mem.enabled is false",
       "model.attention.write.loss=0.1"},
      {"model.attention.alibi.enabled=false;model.attention.alibi.max_bias=4",
       "model.attention.alibi.max_bias is 4 and has no effect: model.attention.alibi.enabled is false",
       "model.attention.alibi.enabled=true"},
      {"data.kind=copy;data.train=foo", "data.train is \"foo\" and has no effect: data.kind is \"copy\"",
       "data.kind=tokens"},
      {"data.kind=copy;data.val=foo", "data.val is \"foo\" and has no effect: data.kind is \"copy\"",
       "data.kind=tokens"},
      {"data.kind=copy;data.document_token=7", "data.document_token is 7 and has no effect: data.pack is false",
       "data.kind=tokens;data.pack=true"},
      {"data.kind=tokens;data.document_token=7", "data.document_token is 7 and has no effect: data.pack is false",
       "data.rows=document"},
      {"data.kind=copy;data.input_length=64", "data.input_length is 64 and has no effect: data.kind is \"copy\"",
       "data.kind=span_corruption;model.encoder.layers=1;model.position=rope"},
      {"data.kind=copy;data.end_token=1", "data.end_token is 1 and has no effect: data.kind is \"copy\"",
       "data.kind=span_corruption;model.encoder.layers=1;model.position=rope"},
      {"data.kind=copy;data.start_token=1", "data.start_token is 1 and has no effect: data.kind is \"copy\"",
       "data.kind=span_corruption;model.encoder.layers=1;model.position=rope"},
      {"data.kind=copy;data.variables=7", "data.variables is 7 and has no effect: data.kind is \"copy\"", NULL},
      {"data.kind=parity;data.values=7", "data.values is 7 and has no effect: data.kind is \"parity\"",
       "data.kind=copy"},
      {"data.kind=variable_assignment;data.max_length=7",
       "data.max_length is 7 and has no effect: data.kind is \"variable_assignment\"", NULL},
      {"data.kind=copy;data.mean_span=4", "data.mean_span is 4 and has no effect: data.kind is \"copy\"", NULL},
      {"train.muon.lr=0.05", "train.muon.lr is 0.05 and has no effect: train.optimizer is \"adamw\"",
       "train.optimizer=muon"},
      {"train.lora.rank=4", "train.lora.rank is 4 and has no effect: train.tune is \"all\"", "train.tune=lora"},
      {"train.whole_memory=true", "train.whole_memory is true and has no effect: model.memory is 0", NULL},
      {"train.select_from_head=false", "train.select_from_head is false and has no effect: train.adapt is false", NULL},
      {"train.strength_steps=10",
       "train.strength_steps is 10 and has no effect: model.attention.selective.strength is \"fixed\"",
       "model.attention.selective.enabled=true;model.attention.selective.strength=scheduled"},
      {"train.prune.draw=true", "train.prune.draw is true and has no effect: train.prune.budgets is \"\"",
       "train.prune.budgets=8"},
      {"data.kind=tokens;train.eval_every=100", "train.eval_every is 100 and has no effect: data.val is \"\"",
       "data.val=some.bin"},
      {"data.kind=tokens;train.eval_every=100", "train.eval_every is 100 and has no effect: data.val is \"\"",
       "data.kind=copy"},
      {"data.kind=tokens;train.eval_every=100", "train.eval_every is 100 and has no effect: data.val is \"\"",
       "train.eval_every=0"},
      {"train.mem.from_step=5",
       "train.mem.from_step is 5 and has no effect: model.attention.selective.mem.enabled is false",
       "model.attention.selective.enabled=true;model.attention.selective.mem.enabled=true"},
  };
  wn_context *ctx = told_context();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char all[1024], sets[512];
    snprintf(sets, sizeof sets, "%s%s", strstr(cases[i].sets, "data.kind") ? "" : "data.kind=copy;", cases[i].sets);
    warned(ctx, sets);
    if (!strstr(told, cases[i].idle)) fail_msg("%s: told \"%s\"", sets, told);
    if (!cases[i].acts) continue;
    snprintf(all, sizeof all, "%s;%s", sets, cases[i].acts);
    warned(ctx, all);
    if (*told) fail_msg("%s: told \"%s\"", all, told);
  }
  warned(ctx, "data.kind=copy");
  assert_string_equal(told, "");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
