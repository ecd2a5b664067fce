/* Fine-tuning during a search: parameters are the trainer's to the bit; nothing computed before a round is used after
 * it; a kill loses nothing; combinations that do not work are refused. */
#include "prune/bench.h"

#include <math.h>

struct tuned {
  struct bench b;
  char checkpoint[300], train[300];
  wn_recipe recipe;
};

static void recipe_of(struct tuned *t) {
  wn_recipe_init(&t->recipe);
  t->recipe.model = *wn_model_config_get(t->b.model);
  t->recipe.data.kind = WN_DATA_TOKENS;
  snprintf(t->recipe.data.train, sizeof t->recipe.data.train, "%s", t->train);
  t->recipe.train.steps = 50;
  t->recipe.train.batch = 2;
  t->recipe.train.lr = 0.05;
  t->recipe.train.min_lr_ratio = 0.1;
  t->recipe.train.save_every = 1;
}

static void tuned_init(struct tuned *t) {
  bench_init(&t->b, selective, 1);
  snprintf(t->checkpoint, sizeof t->checkpoint, "%s/checkpoint", t->b.dir);
  snprintf(t->train, sizeof t->train, "%s/train.bin", t->b.dir);
  must(t->b.ctx, wn_model_save(t->b.ctx, t->b.model, NULL, t->checkpoint));
  write_tokens(t->b.ctx, t->train, 3, 6);
  recipe_of(t);
}

/* Reloads the checkpoint's parameters. */
static void reload(struct tuned *t) {
  wn_model_destroy(t->b.model);
  must(t->b.ctx, wn_model_load(t->b.ctx, t->checkpoint, NULL, &t->b.model));
}

static wn_prune_options tuning(const struct tuned *t, int64_t steps, int64_t every, int64_t after) {
  wn_prune_options o = options_of(&t->b, WN_POLICY_SELECTIVE);
  o.step = 32;
  o.finetune = (wn_prune_finetune){
      .steps = steps, .every = every, .after = after, .checkpoint = t->checkpoint, .recipe = &t->recipe};
  return o;
}

static void run_dir(const struct tuned *t, const char *name, char out[320]) {
  snprintf(out, 320, "%s/%s/tuned", t->b.dir, name);
}

/* The tuned checkpoint's loss under a point's budgets, measured from the files. */
static double measured(const struct tuned *t, const char *name, const wn_prune_curve *c, int64_t point,
                       const char *path, int64_t batch) {
  char dir[320];
  wn_model *model;
  wn_budgets budgets;
  double loss;
  run_dir(t, name, dir);
  must(t->b.ctx, wn_model_load(t->b.ctx, dir, NULL, &model));
  must(t->b.ctx, wn_prune_curve_budgets(t->b.ctx, c, point, &budgets));
  const wn_prune_data data = {.path = path};
  must(t->b.ctx, wn_prune_measure(t->b.ctx, model, &data, 0, batch, &budgets, &loss, NULL));
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  return loss;
}

/* A round after each step. With and without reuse, and lazily, the result is the same. */
static void test_rounds(void **state) {
  (void)state;
  struct tuned t;
  wn_prune_curve a, b;
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 2, 0, 0);
  must(t.b.ctx, search(&t.b, &o, "a", false, &a));
  assert_int_equal(a.count, 1 + 2 * 1); /* 80 -> 48, and no layer goes below 32 */
  assert_int_equal(a.end, WN_PRUNE_FLOOR);
  for (int64_t i = 0; i < a.count; i++) {
    assert_int_equal(a.points[i].tuned, 2 * i);
    assert_true((a.points[i].search_loss != a.points[i].untuned_search_loss) == (i > 0));
    assert_true((a.points[i].report_loss != a.points[i].untuned_report_loss) == (i > 0));
  }
  assert_true(a.plain_loss == a.points[a.count - 1].search_loss);
  assert_true(measured(&t, "a", &a, a.count - 1, t.b.search, 2) == a.points[a.count - 1].search_loss);
  assert_true(measured(&t, "a", &a, a.count - 1, t.b.report, 2) == a.points[a.count - 1].report_loss);
  reload(&t);
  o.plain = true;
  must(t.b.ctx, search(&t.b, &o, "b", false, &b));
  same_curves("with reuse and without", &a, &b);
  wn_prune_curve_clear(&b);
  /* After a round the lazy search has no valid evaluations left, so it looks at all layers, like the exact one. */
  reload(&t);
  o.plain = false;
  o.lazy = o.check = true;
  must(t.b.ctx, search(&t.b, &o, "c", false, &b));
  same_curves("lazy", &a, &b);
  for (int64_t i = 1; i < b.count; i++) assert_int_equal(b.points[i].layer, b.points[i].exact_layer);
  wn_prune_curve_clear(&b);
  wn_prune_curve_clear(&a);
  o.step = 20; /* more steps */
  for (int lazy = 0; lazy < 2; lazy++) {
    reload(&t);
    o.lazy = lazy, o.check = false;
    must(t.b.ctx, search(&t.b, &o, lazy ? "e" : "d", false, lazy ? &b : &a));
  }
  same_curves("lazy without the check", &a, &b);
  for (int64_t i = 1; i < b.count; i++) assert_int_equal(b.points[i].evaluations, a.points[i].evaluations);
  wn_prune_curve_clear(&b);
  wn_prune_curve_clear(&a);
  bench_clear(&t.b);
}

/* A round after the search equals the trainer's run from the checkpoint under the budgets found. */
static void test_after(void **state) {
  (void)state;
  struct tuned t;
  wn_prune_curve a, b;
  char dir[320], by_hand[320], budgets[320];
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 0, 0, 4);
  must(t.b.ctx, search(&t.b, &o, "a", false, &a));
  assert_true(a.closed && a.end == WN_PRUNE_FLOOR);
  const wn_prune_point *last = &a.points[a.count - 1];
  assert_int_equal(last->tuned, 4);
  assert_int_equal(last[-1].tuned, 0);
  wn_recipe r = t.recipe;
  snprintf(r.train.init, sizeof r.train.init, "%s", t.checkpoint);
  snprintf(budgets, sizeof budgets, "%s/a/budgets.json", t.b.dir);
  snprintf(r.train.prune.budgets, sizeof r.train.prune.budgets, "%s", budgets);
  r.train.lr *= r.train.min_lr_ratio;
  r.train.warmup = 0; /* a tenth of four steps */
  r.train.steps = 4;
  r.train.eval_every = 0;
  snprintf(by_hand, sizeof by_hand, "%s/hand", t.b.dir);
  must(t.b.ctx, wn_train_run(t.b.ctx, &r, by_hand, false, NULL, NULL));
  run_dir(&t, "a", dir);
  assert_true(tiny_same_file(dir, by_hand, "model.safetensors"));
  assert_true(tiny_same_file(dir, by_hand, "budgets.json"));
  /* The search before the round is the same as without it. Resumed, it stays finished. A search without a round can be
   * tuned later. */
  reload(&t);
  o.finetune = (wn_prune_finetune){0};
  must(t.b.ctx, search(&t.b, &o, "b", false, &b));
  for (int64_t i = 0; i < a.count; i++) assert_true(a.points[i].untuned_search_loss == b.points[i].search_loss);
  wn_prune_curve_clear(&b);
  o = tuning(&t, 0, 0, 4);
  must(t.b.ctx, search(&t.b, &o, "b", true, &b));
  same_curves("tuned later", &a, &b);
  wn_prune_curve_clear(&b);
  reload(&t);
  o.target = 1e40;
  must(t.b.ctx, search(&t.b, &o, "b", true, &b));
  same_curves("closed", &a, &b);
  assert_int_equal(b.points[b.count - 1].tuned, 4);
  wn_prune_curve_clear(&b);
  wn_prune_curve_clear(&a);
  bench_clear(&t.b);
}

/* If the next step would pass the target, one more round comes first. If that helps the search continues, else it ends.
 */
static void test_target(void **state) {
  (void)state;
  struct tuned t;
  wn_prune_curve none, idle, useful;
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 0, 0, 0);
  o.target = 0;
  o.tolerance = 1e-9;
  o.step = 4;
  must(t.b.ctx, search(&t.b, &o, "none", false, &none));
  assert_int_equal(none.end, WN_PRUNE_TARGET);
  assert_true(none.count > 1);
  o = tuning(&t, 1, 100, 0);
  o.target = 0;
  o.tolerance = 1e-9;
  o.step = 4;
  o.finetune.lr = 1e-12;
  must(t.b.ctx, search(&t.b, &o, "idle", false, &idle));
  assert_int_equal(idle.end, WN_PRUNE_TARGET);
  assert_int_equal(idle.count, none.count);
  assert_int_equal(idle.points[idle.count - 1].tuned, 1);
  assert_int_equal(idle.points[idle.count - 2].tuned, 0);
  reload(&t);
  o.finetune.lr = 0;
  must(t.b.ctx, search(&t.b, &o, "useful", false, &useful));
  assert_true(useful.count > none.count);
  assert_true(useful.points[none.count - 1].tuned == 1 && useful.points[useful.count - 1].tuned > 1);
  for (int64_t i = 0; i < useful.count; i++) assert_true(useful.points[i].untuned_search_loss <= useful.target_loss);
  wn_prune_curve_clear(&none);
  wn_prune_curve_clear(&idle);
  wn_prune_curve_clear(&useful);
  bench_clear(&t.b);
}

static void test_resume(void **state) {
  (void)state;
  struct tuned t;
  wn_prune_curve whole, part;
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 1, 2, 2);
  o.step = 20;
  must(t.b.ctx, search(&t.b, &o, "whole", false, &whole));
  assert_int_equal(whole.count, 1 + 2 * 3);
  for (int portion = 0; portion < 7; portion++) {
    reload(&t);
    o.max_steps = portion < 6 ? 1 : 0;
    must(t.b.ctx, search(&t.b, &o, "part", portion > 0, &part));
    if (portion < 6) wn_prune_curve_clear(&part);
  }
  same_curves("in portions", &whole, &part);
  assert_int_equal(part.points[6].tuned, whole.points[6].tuned);
  wn_prune_curve_clear(&part);
  /* Folders of other searches. */
  reload(&t);
  o.max_steps = 0;
  o.finetune.steps = 2;
  assert_int_equal(search(&t.b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "fine-tuning"));
  o.finetune.steps = 1;
  o.finetune.lr = 0.5;
  assert_int_equal(search(&t.b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "fine-tuning"));
  o.finetune.lr = 0;
  char dir[320], path[340];
  run_dir(&t, "part", dir);
  wn_recipe r = t.recipe;
  r.train.steps = 60;
  must(t.b.ctx, wn_train_run(t.b.ctx, &r, dir, true, NULL, NULL)); /* by hand, beyond the search */
  assert_int_equal(search(&t.b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "step 60"));
  snprintf(path, sizeof path, "%s/part/search.json", t.b.dir);
  remove(path);
  assert_int_equal(search(&t.b, &o, "part", true, NULL), WN_ERR_IO);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "no search to resume"));
  assert_int_equal(search(&t.b, &o, "part", false, NULL), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "no search"));
  wn_prune_curve_clear(&whole);
  bench_clear(&t.b);
}

/* Muon's learning rates decay together. A recipe with another rate belongs to another search. */
static void test_recipe(void **state) {
  (void)state;
  struct tuned t;
  char dir[320], path[340];
  tuned_init(&t);
  t.recipe.train.optimizer = WN_OPT_MUON;
  t.recipe.train.muon.lr = 0.02;
  for (int given = 0; given < 2; given++) {
    const char *name = given ? "given" : "end";
    wn_prune_options o = tuning(&t, 1, 0, 0);
    wn_recipe found;
    o.max_steps = 1;
    o.finetune.lr = given ? 0.01 : 0;
    reload(&t);
    must(t.b.ctx, search(&t.b, &o, name, false, NULL));
    run_dir(&t, name, dir);
    snprintf(path, sizeof path, "%s/recipe.json", dir);
    must(t.b.ctx, wn_recipe_load(t.b.ctx, path, NULL, 0, &found));
    assert_true(fabs(found.train.lr - (given ? 0.01 : 0.005)) < 1e-12);
    if (!(fabs(found.train.muon.lr - (given ? 0.004 : 0.002)) < 1e-12)) fail_msg("%s: %g", name, found.train.muon.lr);
    const wn_recipe kept = t.recipe;
    t.recipe.train.save_every = 7; /* does not change what is learned */
    t.recipe.train.tune = WN_TUNE_ATTENTION;
    reload(&t);
    assert_int_equal(search(&t.b, &o, name, true, NULL), WN_ERR_CONFIG);
    assert_non_null(strstr(wn_context_error(t.b.ctx), "another recipe for fine-tuning"));
    t.recipe.train.tune = kept.train.tune;
    must(t.b.ctx, search(&t.b, &o, name, true, NULL));
    t.recipe = kept;
  }
  bench_clear(&t.b);
}

/* A search's folder from a stranger: the run to which it links is not written to. */
static void test_link(void **state) {
  (void)state;
  struct tuned t;
  char dir[320], other[320];
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 1, 1, 1);
  o.step = 40;
  must(t.b.ctx, search(&t.b, &o, "a", false, NULL));
  run_dir(&t, "a", dir);
  snprintf(other, sizeof other, "%s/other", t.b.dir);
  assert_int_equal(rename(dir, other), 0);
  assert_int_equal(symlink(other, dir), 0);
  char *before = tiny_read(other, "state.json", NULL);
  o.finetune.after = 3;
  assert_int_equal(search(&t.b, &o, "a", true, NULL), WN_ERR_IO);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "tuned: is a symbolic link"));
  char *after = tiny_read(other, "state.json", NULL);
  assert_string_equal(before, after);
  free(before);
  free(after);
  assert_int_equal(remove(dir), 0);
  assert_int_equal(rename(other, dir), 0);
  static const char *const names[] = {"budgets.json", "search.json", "curve.csv", "curve.svg"};
  for (int i = 0; i < 4; i++) {
    char link[360];
    snprintf(link, sizeof link, "%s/a/%s", t.b.dir, names[i]);
    rename(link, other);
    assert_int_equal(symlink(other, link), 0);
    assert_int_equal(search(&t.b, &o, "a", true, NULL), WN_ERR_IO);
    assert_non_null(strstr(wn_context_error(t.b.ctx), "is a symbolic link"));
    remove(link);
    rename(other, link);
  }
  bench_clear(&t.b);
}

/* A child that kills itself at one of the places, within rounds and between them. */
static void test_kill(void **state) {
  (void)state;
  struct tuned t;
  wn_prune_curve whole, part;
  tuned_init(&t);
  wn_prune_options o = tuning(&t, 2, 1, 1);
  places = 0;
  must(t.b.ctx, search(&t.b, &o, "whole", false, &whole));
  const long all = places;
  char whole_run[320], run[320];
  run_dir(&t, "whole", whole_run);
  int killed = 0;
  for (long at = 1; at <= all; at += 7) {
    char name[32];
    int code;
    snprintf(name, sizeof name, "k%ld", at);
    reload(&t);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
      places = 0;
      kill_at = at;
      _exit((int)search_on(&t.b, &o, name, NULL));
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    killed += WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL;
    must(t.b.ctx, search_on(&t.b, &o, name, &part));
    same_curves(name, &whole, &part);
    assert_int_equal(part.points[part.count - 1].tuned, whole.points[whole.count - 1].tuned);
    wn_prune_curve_clear(&part);
    run_dir(&t, name, run);
    assert_true(tiny_same_file(whole_run, run, "model.safetensors"));
    assert_true(tiny_same_file(whole_run, run, "budgets.json"));
  }
  assert_true(killed > 5);
  wn_prune_curve_clear(&whole);
  bench_clear(&t.b);
}

static void test_bad_input(void **state) {
  (void)state;
  struct tuned t;
  tuned_init(&t);
  const struct {
    int64_t steps, every, after;
    double lr, recipe_lr;
    wn_status status;
    const char *says;
  } cases[] = {{-1, 0, 0, 0, 1, WN_ERR_ARGUMENT, "negative"},  {1, -1, 0, 0, 1, WN_ERR_ARGUMENT, "negative"},
               {0, 2, 0, 0, 1, WN_ERR_ARGUMENT, "at least 1"}, {0, 0, -5, 0, 1, WN_ERR_ARGUMENT, "negative"},
               {1, 0, 0, -1, 1, WN_ERR_ARGUMENT, "rate"},      {1, 0, 0, NAN, 1, WN_ERR_ARGUMENT, "rate"},
               {1, 0, 0, 0, 0, WN_ERR_CONFIG, "rate of 0"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_prune_options o = tuning(&t, cases[i].steps, cases[i].every, cases[i].after);
    o.finetune.lr = cases[i].lr;
    t.recipe.train.lr = cases[i].recipe_lr;
    assert_int_equal(search(&t.b, &o, "x", false, NULL), cases[i].status);
    if (!strstr(wn_context_error(t.b.ctx), cases[i].says)) fail_msg("%d: %s", (int)i, wn_context_error(t.b.ctx));
  }
  recipe_of(&t);
  wn_prune_options o = tuning(&t, 1, 0, 0);
  o.finetune.recipe = NULL;
  assert_int_equal(search(&t.b, &o, "x", false, NULL), WN_ERR_ARGUMENT);
  o = tuning(&t, 1, 0, 0);
  o.target = 0, o.target_model = t.b.model;
  assert_int_equal(search(&t.b, &o, "x", false, NULL), WN_ERR_ARGUMENT);
  o = tuning(&t, 1, 0, 0);
  t.recipe.model.attention.window = 8;
  assert_int_equal(search(&t.b, &o, "x", false, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "only dropout and L_mem"));
  recipe_of(&t);
  t.recipe.model.attention.selective.mem.enabled =
      true; /* this may differ; without data the run stops and its state stays */
  t.recipe.data.train[0] = 0;
  assert_int_equal(search(&t.b, &o, "x", false, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(t.b.ctx), "data.train"));
  recipe_of(&t);
  t.recipe.model.attention.selective.mem.enabled = true;
  must(t.b.ctx, search(&t.b, &o, "x", true, NULL));
  bench_clear(&t.b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounds), cmocka_unit_test(test_after),
                                     cmocka_unit_test(test_target), cmocka_unit_test(test_resume),
                                     cmocka_unit_test(test_kill),   cmocka_unit_test(test_link),
                                     cmocka_unit_test(test_recipe), cmocka_unit_test(test_bad_input)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
