/* The budget search on small models. With reuse it gives the same bits as the plain loop. Interrupted, killed and
 * resumed it gives what an undisturbed one gives. Targets hold. Mismatches are refused. */
#include "prune/bench.h"

#include <math.h>

#include "prune/evaluator.h"
#include "winnow/report.h"
#include "policies.h"

/* Every kind of model and policy. */
static const struct {
  const char *name;
  wn_policy policy;
  bool per_kv_head;
  const char *sets[4];
} cases[] = {
    {"selective", WN_POLICY_SELECTIVE, false, {"model.attention.selective.enabled=true", "model.layers=3"}},
    {"grouped, a selection a head",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention.selective.per_kv_head=true", "model.attention.selective.enabled=true", "model.heads=4",
      "model.kv_heads=2"}},
    {"bilinear",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention.selective.bilinear=true", "model.heads=4", "model.kv_heads=2"}},
    {"the second of four heads, grouped",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention.selective.head=3", "model.heads=4", "model.kv_heads=2", "model.position=rope"}},
    {"norms after, relative positions",
     WN_POLICY_SELECTIVE,
     false,
     {"model.norm_place=post", "model.norm=layernorm", "model.position=none",
      "model.attention={\"selective\":{},\"relative\":{}}"}},
    {"position biases, the second of two heads",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention={\"selective\":{\"head\":1},\"buckets\":{\"count\":8,\"farthest\":40}}", "model.position=none",
      "model.init_std=0.6"}},
    {"position biases, a selection a head",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention={\"selective\":{\"per_kv_head\":true,\"head\":1},\"buckets\":{\"count\":8,\"farthest\":40}}",
      "model.heads=4", "model.kv_heads=2", "model.init_std=0.6"}},
    {"dynamic spans, exclusive",
     WN_POLICY_SELECTIVE,
     false,
     {"model.attention={\"selective\":{},\"span\":{\"dynamic\":true,\"limit\":200},\"exclusive\":{}}",
      "model.qk_norm=false"}},
    {"random, selective", WN_POLICY_RANDOM, false, {"model.attention.selective.enabled=true"}},
    {"random, a key-value head each", WN_POLICY_RANDOM, true, {"model.heads=4", "model.kv_heads=2"}},
    {"window", WN_POLICY_WINDOW, false, {"model.attention.sinks=2"}},
    {"streaming", WN_POLICY_STREAMING, false, {"model.attention.threshold={}"}},
};

static void case_init(size_t i, struct bench *b, wn_prune_options *o) {
  int n = 0;
  while (n < 4 && cases[i].sets[n]) n++;
  bench_init(b, cases[i].sets, n);
  *o = options_of(b, cases[i].policy);
  o->budgets.per_kv_head = cases[i].per_kv_head;
}

static wn_status reuse_create(const struct bench *b, const struct wn_prune_set *set, int64_t batch,
                              const wn_prune_options *o, struct wn_prune_evaluator **out) {
  const struct wn_prune_reuse options = {
      .what = "set", .set = set, .batch = batch, .budgets = &o->budgets, .trials = true, .memory = o->memory};
  return wn_prune_reuse_create(b->ctx, b->model, &options, out);
}

/* Down to the floor. */
static void test_reuse(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct bench b;
    wn_prune_curve plain, reuse;
    wn_prune_options o;
    case_init(i, &b, &o);
    must(b.ctx, search(&b, &o, "reuse", false, &reuse));
    o.plain = true;
    must(b.ctx, search(&b, &o, "plain", false, &plain));
    assert_int_equal(plain.end, WN_PRUNE_FLOOR);
    assert_int_equal(plain.count, 1 + plain.layers * (CONTEXT / STEP - 1));
    same_curves(cases[i].name, &plain, &reuse);
    assert_true(reuse.plain_loss == reuse.points[reuse.count - 1].search_loss);
    assert_true(plain.points[plain.count - 1].search_loss != plain.points[0].search_loss);
    wn_prune_curve_clear(&plain);
    wn_prune_curve_clear(&reuse);
    bench_clear(&b);
  }
}

/* Recomputing only from the first position that can change (by_rows) gives the same figures, whether or not this
 * machine's kernels then give the same bits. */
static void test_positions(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct bench b;
    wn_prune_options o;
    struct wn_prune_set set;
    struct wn_prune_evaluator *plain, *reuse;
    int64_t tokens[3] = {CONTEXT, 64, CONTEXT};
    double x, y, unpruned;
    case_init(i, &b, &o);
    must(b.ctx, wn_prune_set_load(b.ctx, "set", &o.search, CONTEXT, VOCAB, false, &set));
    must(b.ctx, wn_prune_plain_create(b.ctx, b.model, &set, 2, &o.budgets, &plain));
    must(b.ctx, reuse_create(&b, &set, 2, &o, &reuse));
    must(b.ctx, plain->begin(plain, tokens, &unpruned));
    must(b.ctx, reuse->begin(reuse, tokens, &y));
    assert_true(unpruned == y);
    print_message("%s: positions alone %s\n", cases[i].name, reuse->by_rows ? "give the same bits" : "do not");
    reuse->by_rows = true;
    bool changed = false;
    for (int64_t to = 1; to < CONTEXT; to += 9) {
      must(b.ctx, plain->evaluate(plain, 0, to, &x));
      must(b.ctx, reuse->evaluate(reuse, 0, to, &y));
      if (!(fabs(x - y) < 1e-6 * x)) fail_msg("%s: layer 0 to %d: %.17g and %.17g", cases[i].name, (int)to, x, y);
      changed = changed || x != unpruned;
    }
    if (!changed) fail_msg("%s: no budget changes anything", cases[i].name);
    must(b.ctx, plain->accept(plain, 1, 40, &x));
    must(b.ctx, reuse->accept(reuse, 1, 40, &y));
    assert_true(fabs(x - y) < 1e-6 * x);
    double of_plain[ROWS], of_reuse[ROWS], sum = 0;
    assert_int_equal(set.all_rows, ROWS);
    must(b.ctx, plain->rows(plain, of_plain));
    must(b.ctx, reuse->rows(reuse, of_reuse));
    for (int r = 0; r < ROWS; r++) {
      assert_true(fabs(of_plain[r] - of_reuse[r]) < 1e-6 * of_plain[r]);
      sum += of_plain[r];
    }
    assert_true(fabs(sum / (double)set.counted - x) < 1e-12 * x);
    must(b.ctx, plain->evaluate(plain, 0, 50, &x));
    must(b.ctx, reuse->evaluate(reuse, 0, 50, &y));
    assert_true(fabs(x - y) < 1e-6 * x);
    plain->destroy(plain);
    reuse->destroy(reuse);
    wn_prune_set_clear(&set);
    bench_clear(&b);
  }
}

/* Keep rules that see distant keys have their own code path, which evictions do not take: rows before the first
 * eviction are summed in another order as well. */
static void test_sparse(void **state) {
  (void)state;
  static const char *const sets[] = {"model.context=240", "model.attention={\"sqrt\":{\"buffer\":4,\"density\":1.5}}"};
  struct bench b;
  struct wn_prune_set set;
  struct wn_prune_evaluator *plain, *reuse;
  double x, y;
  bench_init(&b, sets, 2);
  wn_prune_options o = options_of(&b, WN_POLICY_STREAMING);
  must(b.ctx, wn_prune_set_load(b.ctx, "set", &o.search, 3 * CONTEXT, VOCAB, false, &set));
  must(b.ctx, wn_prune_plain_create(b.ctx, b.model, &set, 1, &o.budgets, &plain));
  must(b.ctx, reuse_create(&b, &set, 1, &o, &reuse));
  must(b.ctx, plain->begin(plain, NULL, &x));
  must(b.ctx, reuse->begin(reuse, NULL, &y));
  assert_true(x == y);
  for (int64_t to = 230; to > 0; to -= 20) {
    must(b.ctx, plain->evaluate(plain, 0, to, &x));
    must(b.ctx, reuse->evaluate(reuse, 0, to, &y));
    if (x != y) fail_msg("layer 0 to %d: %.17g and %.17g", (int)to, x, y);
  }
  plain->destroy(plain);
  reuse->destroy(reuse);
  wn_prune_set_clear(&set);
  bench_clear(&b);
}

/* Without memory for the best trial, it is run again, with the same curve. With still less, one line says how much
 * would be needed. */
static void test_memory(void **state) {
  (void)state;
  struct bench b;
  wn_prune_curve a, c;
  bench_init(&b, selective, 1);
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  must(b.ctx, search(&b, &o, "roomy", false, &a));
  bool tight = false, refused = false;
  for (uint64_t memory = 1 << 22; memory > 1000 && !refused; memory -= memory / 6) {
    char name[32];
    snprintf(name, sizeof name, "m%llu", (unsigned long long)memory);
    o.memory = memory;
    const wn_status status = search(&b, &o, name, false, &c);
    if (status == WN_ERR_MEMORY) {
      refused = true;
      assert_non_null(strstr(wn_context_error(b.ctx), "rows fit"));
    } else {
      must(b.ctx, status);
      same_curves("tight", &a, &c);
      tight = true;
      wn_prune_curve_clear(&c);
    }
  }
  assert_true(tight && refused);
  wn_prune_curve_clear(&a);
  bench_clear(&b);
}

/* The last step stays within the target and the next one would pass it. The curve ends where the full one first passes
 * it. */
static void test_target(void **state) {
  (void)state;
  struct bench b;
  wn_prune_curve whole, part;
  bench_init(&b, selective, 1);
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  must(b.ctx, search(&b, &o, "whole", false, &whole));
  for (int64_t i = 0; i < whole.count; i++) {
    char name[32];
    int64_t last = 0;
    snprintf(name, sizeof name, "t%d", (int)i);
    o.target = exp(whole.points[i].search_loss + 1e-9);
    while (last + 1 < whole.count && whole.points[last + 1].search_loss <= log(o.target)) last++;
    must(b.ctx, search(&b, &o, name, false, &part));
    if (whole.points[0].search_loss > log(o.target)) last = 0;
    assert_int_equal(part.count, last + 1);
    assert_int_equal(part.end, last + 1 < whole.count ? WN_PRUNE_TARGET : WN_PRUNE_FLOOR);
    wn_prune_curve_clear(&part);
  }
  /* The model's own target, and another one. */
  o.target = 0;
  o.tolerance = 0.01;
  must(b.ctx, search(&b, &o, "own", false, &part));
  assert_true(fabs(exp(part.target_loss) / exp(whole.points[0].search_loss) - 1.01) < 1e-12);
  assert_true(part.points[part.count - 1].search_loss <= part.target_loss);
  wn_prune_curve_clear(&part);
  o.target_model = b.model;
  must(b.ctx, search(&b, &o, "other", false, &part));
  assert_true(part.target_loss == whole.points[0].search_loss);
  wn_prune_curve_clear(&part);
  wn_prune_curve_clear(&whole);
  bench_clear(&b);
}

static void resumes(bool lazy) {
  struct bench b;
  wn_prune_curve whole, part;
  bench_init(&b, selective, 1);
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  o.lazy = lazy;
  o.check = lazy;
  must(b.ctx, search(&b, &o, "whole", false, &whole));
  assert_int_equal(search(&b, &o, "whole", false, NULL), WN_ERR_ARGUMENT); /* it exists already */
  assert_int_equal(search(&b, &o, "none", true, NULL), WN_ERR_IO);
  assert_non_null(strstr(wn_context_error(b.ctx), "none: no search to resume"));
  o.max_steps = 3;
  must(b.ctx, search(&b, &o, "part", false, &part));
  assert_int_equal(part.end, WN_PRUNE_STEPS);
  assert_int_equal(part.count, 4);
  wn_prune_curve_clear(&part);
  o.max_steps = 2;
  must(b.ctx, search(&b, &o, "part", true, &part));
  assert_int_equal(part.count, 6);
  wn_prune_curve_clear(&part);
  /* Ended at a target that is then raised. */
  o.max_steps = 0;
  o.target = exp(whole.points[5].search_loss);
  must(b.ctx, search(&b, &o, "part", true, &part));
  wn_prune_curve_clear(&part);
  o.target = 1e30;
  must(b.ctx, search(&b, &o, "part", true, &part));
  same_curves(lazy ? "resumed, lazy" : "resumed", &whole, &part);
  wn_prune_curve_clear(&part);
  /* The folder of another search. */
  o.step = 8;
  assert_int_equal(search(&b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(b.ctx), "step"));
  o.step = STEP;
  o.search.rows = 2;
  assert_int_equal(search(&b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(b.ctx), "search set"));
  o.budgets.snapkv.pool = WN_POOL_MAX; /* every option of every policy counts */
  o.search.rows = 0;
  assert_int_equal(search(&b, &o, "part", true, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(b.ctx), "policy"));
  o.budgets.snapkv.pool = WN_POOL_MEAN;
  wn_context_cancel(b.ctx);
  o.search.rows = 0;
  assert_int_equal(search(&b, &o, "part", true, NULL), WN_ERR_CANCELLED);
  wn_prune_curve_clear(&whole);
  bench_clear(&b);
}

static void test_resume(void **state) {
  (void)state;
  resumes(false);
  resumes(true);
}

/* A step forbidden by the target leaves nothing for the lazy search to reuse: when the target is raised, the search
 * makes the same evaluations that it would have made. */
static void test_lazy_resume(void **state) {
  (void)state;
  static const char *const sets[] = {"model.attention.selective.enabled=true", "model.layers=4", "model.init_std=0.6",
                                     "model.position=none"};
  struct bench b;
  wn_prune_curve whole, part;
  bench_init(&b, sets, 4);
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  double most = 0;
  int stops = 0;
  o.lazy = true;
  must(b.ctx, search(&b, &o, "whole", false, &whole));
  for (int64_t stop = 0; stop < whole.count - 1; stop++) {
    char name[32];
    most = fmax(most, whole.points[stop].search_loss);
    if (stop < 2 || !(whole.points[stop + 1].search_loss > most + 1e-6)) continue; /* a target that forbids that step */
    snprintf(name, sizeof name, "stopped-%d", (int)stop);
    o.target = exp(most + 1e-9);
    must(b.ctx, search(&b, &o, name, false, &part));
    stops += part.end == WN_PRUNE_TARGET && part.count == stop + 1;
    wn_prune_curve_clear(&part);
    o.target = 1e30;
    must(b.ctx, search(&b, &o, name, true, &part));
    same_curves(name, &whole, &part);
    for (int64_t i = 0; i < whole.count; i++) assert_int_equal(part.points[i].evaluations, whole.points[i].evaluations);
    wn_prune_curve_clear(&part);
  }
  assert_true(stops >= 2);
  wn_prune_curve_clear(&whole);
  bench_clear(&b);
}

/* A child that kills itself at every third place, and is resumed until it gets through. */
static void test_kill(void **state) {
  (void)state;
  struct bench b;
  wn_prune_curve whole, part;
  bench_init(&b, selective, 1);
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  o.target = 0;
  places = 0;
  o.tolerance = 10;
  must(b.ctx, search(&b, &o, "whole", false, &whole));
  const long all = places;
  assert_true(all > 8);
  int killed = 0;
  for (long at = 1; at <= all; at += 3) {
    char name[32];
    int code;
    snprintf(name, sizeof name, "k%ld", at);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
      places = 0;
      kill_at = at;
      _exit((int)search_on(&b, &o, name, NULL));
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    killed += WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL;
    must(b.ctx, search_on(&b, &o, name, &part));
    same_curves(name, &whole, &part);
    wn_prune_curve_clear(&part);
  }
  assert_true(killed > 2);
  wn_prune_curve_clear(&whole);
  bench_clear(&b);
}

/* Files that do not belong to a search. */
static void test_hostile(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b, selective, 1);
  char path[300];
  snprintf(path, sizeof path, "%s/search.json", b.dir);
  static const char *const texts[] = {
      "", "[]", "{}", "{\"budgets\": {\"tokens\": [1]}, \"context\": 0}",
      "{\"budgets\": {\"tokens\": [80, 80]}, \"context\": 80, \"step\": 16, \"target_loss\": null, \"plain_loss\": "
      "null, "
      "\"model\": \"\", \"search\": \"\", \"report\": \"\", \"search_rows\": 1, \"report_rows\": 1, \"search_tokens\": "
      "1, "
      "\"report_tokens\": 1, \"increase\": [null, null], \"points\": [{\"tokens\": [80, 81], \"layer\": -1}]}",
      "{\"budgets\": {\"tokens\": [80, 80]}, \"context\": 80, \"step\": 16, \"target_loss\": null, \"plain_loss\": "
      "null, "
      "\"model\": \"\", \"search\": \"\", \"report\": \"\", \"search_rows\": 1, \"report_rows\": 1, \"search_tokens\": "
      "1, "
      "\"report_tokens\": 1, \"increase\": [null], \"points\": [{}]}",
      /* counts whose sum would overflow */
      "{\"budgets\": {\"tokens\": [80, 80]}, \"context\": 80, \"step\": 16, \"target_loss\": null, \"plain_loss\": "
      "null, "
      "\"model\": \"\", \"search\": \"\", \"report\": \"\", \"search_rows\": 1, \"report_rows\": 1, \"search_tokens\": "
      "1, "
      "\"report_tokens\": 1, \"increase\": [null, null], \"points\": [{\"tokens\": [80, 80], \"layer\": -1, "
      "\"evaluations\": 4611686018427387904, \"search_loss\": 1, \"report_loss\": 1, \"seconds\": 1}]}",
      /* rows that are not as many as there are, or no losses */
      "{\"budgets\": {\"tokens\": [80, 80]}, \"context\": 80, \"step\": 16, \"target_loss\": null, \"plain_loss\": "
      "null, \"model\": \"\", \"search\": \"\", \"report\": \"\", \"search_rows\": 1, \"report_rows\": 2, "
      "\"search_tokens\": 1, \"report_tokens\": 1, \"report_row_tokens\": [1], \"increase\": [null, null], \"points\": "
      "[{\"tokens\": [80, 80], \"layer\": -1, \"evaluations\": 1, \"search_loss\": 1, \"report_loss\": 1, \"seconds\": "
      "1}]}",
      "{\"budgets\": {\"tokens\": [80, 80]}, \"context\": 80, \"step\": 16, \"target_loss\": null, \"plain_loss\": "
      "null, \"model\": \"\", \"search\": \"\", \"report\": \"\", \"search_rows\": 1, \"report_rows\": 2, "
      "\"search_tokens\": 1, \"report_tokens\": 1, \"report_row_tokens\": [1, 1], \"increase\": [null, null], "
      "\"points\": [{\"tokens\": [80, 80], \"layer\": -1, \"evaluations\": 1, \"search_loss\": 1, \"report_loss\": 1, "
      "\"seconds\": 1, \"report_row_loss\": [1, -1]}]}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    wn_prune_curve c;
    must(b.ctx, wn_file_write(b.ctx, path, texts[i], strlen(texts[i])));
    const wn_status status = wn_prune_curve_load(b.ctx, path, &c);
    assert_true(status == WN_ERR_FORMAT || status == WN_ERR_CONFIG);
    assert_non_null(strstr(wn_context_error(b.ctx), "search.json"));
  }
  /* Mismatches with the model. */
  wn_prune_options o = options_of(&b, WN_POLICY_SELECTIVE);
  o.step = 80;
  assert_int_equal(search(&b, &o, "x", false, NULL), WN_ERR_ARGUMENT);
  o.step = STEP;
  o.context = 81;
  assert_int_equal(search(&b, &o, "x", false, NULL), WN_ERR_ARGUMENT);
  bench_clear(&b);
  bench_init(&b, NULL, 0);
  o = options_of(&b, WN_POLICY_SELECTIVE);
  assert_int_equal(search(&b, &o, "x", false, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(b.ctx), "selective"));
  bench_clear(&b);
}

/* Documents of 100, 71, 30 and 200 tokens. Those of at least 72 become sequences, cut at 80. */
static void test_long_only(void **state) {
  (void)state;
  struct bench b;
  struct wn_prune_set set;
  bench_init(&b, NULL, 0);
  int32_t tokens[405], starts[] = {3, 103, 174, 204, 404};
  for (int i = 0; i < 405; i++) tokens[i] = 1 + i % 30;
  for (int i = 0; i < 4; i++) tokens[starts[i]] = 0;
  char path[300];
  snprintf(path, sizeof path, "%s/documents.bin", b.dir);
  must(b.ctx, wn_token_file_write(b.ctx, path, "llmc", VOCAB, tokens, 404));
  wn_prune_data data = {.path = path, .long_only = true, .document_token = 0};
  must(b.ctx, wn_prune_set_load(b.ctx, "set", &data, CONTEXT, VOCAB, false, &set));
  assert_int_equal(set.rows, 2);
  assert_int_equal(set.counted, 160);
  for (int i = 0; i < CONTEXT; i++) {
    assert_int_equal(set.tokens[i], tokens[3 + i]);
    assert_int_equal(set.targets[i], tokens[4 + i]);
    assert_int_equal(set.tokens[CONTEXT + i], tokens[204 + i]);
  }
  wn_prune_set_clear(&set);
  data.rows = 1;
  must(b.ctx, wn_prune_set_load(b.ctx, "set", &data, CONTEXT, VOCAB, false, &set));
  assert_int_equal(set.rows, 1);
  wn_prune_set_clear(&set);
  must(b.ctx, wn_prune_set_load(b.ctx, "set", &(wn_prune_data){path, 0, true, 0}, 72, VOCAB, false, &set));
  assert_int_equal(set.rows, 3); /* also the one of 71: its last position has no target */
  assert_int_equal(set.counted, 72 + 70 + 72);
  assert_int_equal(set.targets[72 + 70], -1);
  wn_prune_set_clear(&set);
  data.document_token = 39;
  assert_int_equal(wn_prune_set_load(b.ctx, "set", &data, CONTEXT, VOCAB, false, &set), WN_ERR_FORMAT);
  /* Blocks: the last one is padded. */
  data.long_only = false;
  data.rows = 0;
  must(b.ctx, wn_prune_set_load(b.ctx, "set", &data, CONTEXT, VOCAB, false, &set));
  assert_int_equal(set.rows, 6);
  assert_int_equal(set.counted, 403);
  wn_prune_set_clear(&set);
  assert_int_equal(wn_prune_set_load(b.ctx, "set", &data, CONTEXT, 20, false, &set), WN_ERR_SHAPE);
  bench_clear(&b);
}

static int count_of(const char *text, const char *part) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, part)); at++) n++;
  return n;
}

/* Two models and three policies: the figures equal single measurements, and files are whole. */
static void test_compare(void **state) {
  (void)state;
  struct bench a, b;
  bench_init(&a, selective, 1);
  bench_init(&b, NULL, 0);
  wn_prune_curve curve;
  wn_prune_options so = options_of(&a, WN_POLICY_SELECTIVE);
  must(a.ctx, search(&a, &so, "s", false, &curve));
  const wn_prune_subject subjects[] = {{.name = "standard", .model = b.model},
                                       {.name = "<selective> & more", .model = a.model, .searched = &curve}};
  const int64_t tokens[] = {16, 50, 80, 1000}; /* the search found a budget near 50, too */
  const wn_policy policies[] = {WN_POLICY_SELECTIVE, WN_POLICY_WINDOW, WN_POLICY_RANDOM};
  wn_prune_compare_options o;
  wn_prune_compare_options_init(&o, sizeof o);
  o.subjects = subjects;
  o.subject_count = 2;
  o.data.path = a.search;
  o.batch = 2;
  o.tokens = tokens;
  o.token_count = 4;
  o.policies = policies;
  o.policy_count = 3;
  wn_prune_comparison c;
  must(a.ctx, wn_prune_compare(a.ctx, &o, NULL, NULL, &c));
  assert_int_equal(c.count, (1 + 8) + (1 + 12 + 3)); /* the standard model has no policy selective */
  double unpruned[2] = {0};
  wn_eval_rows whole[2] = {0}, rows;
  for (int64_t i = 0; i < c.count; i++) {
    const wn_prune_row *r = &c.results[i];
    if (r->policy < 0) {
      unpruned[r->subject] = r->loss;
      must(a.ctx, wn_prune_measure_rows(a.ctx, subjects[r->subject].model, &o.data, 0, 2, NULL, &whole[r->subject]));
      assert_true(r->change.value == 0 && r->change.error == 0);
      continue;
    }
    assert_false(r->subject == 0 && r->policy == WN_POLICY_SELECTIVE);
    wn_budgets budgets;
    double loss;
    uint64_t counted;
    budgets_init(&budgets);
    budgets.policy = (wn_policy)r->policy;
    budgets.layers = c.layers[r->subject];
    budgets.tokens = r->tokens;
    must(a.ctx, wn_prune_measure(a.ctx, subjects[r->subject].model, &o.data, 0, 2, &budgets, &loss, &counted));
    must(a.ctx, wn_prune_measure_rows(a.ctx, subjects[r->subject].model, &o.data, 0, 2, &budgets, &rows));
    assert_true(loss == r->loss);
    assert_int_equal(rows.count, c.rows);
    wn_estimate change;
    double sum = 0, apart = 0;
    for (int64_t k = 0; k < c.rows; k++) {
      assert_true(rows.sums[k].loss == r->row_loss[k] && rows.sums[k].tokens == c.row_tokens[k]);
      sum += r->row_loss[k];
      apart += fabs(r->row_loss[k] - whole[r->subject].sums[k].loss);
    }
    assert_true(fabs(sum / (double)counted - loss) < 1e-12 * loss);
    assert_int_equal(wn_rows_difference(rows.sums, whole[r->subject].sums, c.rows, &change), WN_OK);
    assert_true(fabs(change.value - r->change.value) < 1e-15 && fabs(change.error - r->change.error) < 1e-15);
    assert_int_equal(wn_rows_difference(rows.sums, whole[0].sums, c.rows, &change), WN_OK);
    assert_true(fabs(change.value - r->difference.value) < 1e-15 && fabs(change.high - r->difference.high) < 1e-15);
    assert_int_equal(r->verdict, wn_estimate_verdict(&change, 0.01));
    if (r->total < 2 * CONTEXT) assert_true(apart > 0 && r->change.error > 0);
    wn_eval_rows_clear(&rows);
    assert_int_equal(counted, ROWS * CONTEXT);
    if (r->total == 2 * CONTEXT) assert_true(r->loss == unpruned[r->subject]);
    if (r->searched && r->total == 32) assert_true(r->loss == curve.points[curve.count - 1].search_loss);
  }
  for (int i = 0; i < 2; i++) wn_eval_rows_clear(&whole[i]);
  assert_int_equal(c.saving_count, 2 + 4);
  for (int64_t i = 0; i < c.saving_count; i++) {
    const wn_prune_saving *s = &c.savings[i];
    assert_true(s->saving.low >= 1 && s->saving.low <= s->saving.value && s->saving.value <= s->saving.high);
    assert_true(s->open >= 0 && s->open <= 1 && s->saving.rows == ROWS);
  }
  char path[300];
  snprintf(path, sizeof path, "%s/c.svg", a.dir);
  must(a.ctx, wn_prune_comparison_save_svg(a.ctx, &c, "a < b & c", path));
  char *text = tiny_read(a.dir, "c.svg", NULL);
  assert_true(!strncmp(text, "<svg", 4) && strstr(text, "</svg>\n") && strstr(text, "a &lt; b &amp; c"));
  assert_int_equal(count_of(text, "<path class=\"line"), 2 * (2 + 4)); /* the legend's, too */
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "inf"));
  free(text);
  snprintf(path, sizeof path, "%s/c.csv", a.dir);
  must(a.ctx, wn_prune_comparison_save_csv(a.ctx, &c, path));
  text = tiny_read(a.dir, "c.csv", NULL);
  assert_int_equal(count_of(text, "\n"), 1 + (int)c.count);
  free(text);
  snprintf(path, sizeof path, "%s/c.json", a.dir);
  must(a.ctx, wn_prune_comparison_save_json(a.ctx, &c, path));
  wn_prune_comparison loaded;
  must(a.ctx, wn_prune_comparison_load(a.ctx, path, &loaded));
  assert_true(loaded.count == c.count && loaded.saving_count == c.saving_count && loaded.margin == c.margin);
  for (int64_t i = 0; i < c.count; i++) {
    const wn_prune_row *x = &loaded.results[i], *y = &c.results[i];
    assert_true(x->loss_rows.error == y->loss_rows.error && x->change.value == y->change.value &&
                x->difference.low == y->difference.low && x->difference.high == y->difference.high &&
                x->verdict == y->verdict);
  }
  for (int64_t i = 0; i < c.saving_count; i++) {
    const wn_prune_saving *x = &loaded.savings[i], *y = &c.savings[i];
    assert_true(x->subject == y->subject && x->policy == y->policy && x->searched == y->searched &&
                x->saving.value == y->saving.value && x->saving.high == y->saving.high && x->open == y->open);
  }
  wn_prune_comparison_loaded_clear(&loaded);
  snprintf(path, sizeof path, "%s/curve.csv", a.dir);
  must(a.ctx, wn_prune_curve_save_csv(a.ctx, &curve, path));
  text = tiny_read(a.dir, "curve.csv", NULL);
  assert_int_equal(count_of(text, "\n"), 1 + (int)curve.count);
  assert_non_null(strstr(text, "\n0,,80 80,160,1,"));
  free(text);
  snprintf(path, sizeof path, "%s/curve.svg", a.dir);
  must(a.ctx, wn_prune_curve_save_svg(a.ctx, &curve, "curve", path));
  /* Infinite perplexities are left out of the plots. */
  for (int64_t i = 0; i < c.count; i += 2) c.results[i].loss = 800;
  curve.points[curve.count - 1].search_loss = curve.points[0].report_loss = 800;
  must(a.ctx, wn_prune_curve_save_svg(a.ctx, &curve, "curve", path));
  text = tiny_read(a.dir, "curve.svg", NULL);
  assert_true(!strstr(text, "nan") && !strstr(text, "inf") && strstr(text, "</svg>\n"));
  free(text);
  for (int64_t all = 0; all < 2; all++) {
    must(a.ctx, wn_prune_comparison_save_svg(a.ctx, &c, "some, then all", path));
    text = tiny_read(a.dir, "curve.svg", NULL);
    assert_int_equal(count_of(text, "<path class=\"line"), 2 * (2 + 4)); /* the legend's, too */
    assert_true(!strstr(text, "nan") && !strstr(text, "inf") && strstr(text, "</svg>\n"));
    free(text);
    for (int64_t i = 0; i < c.count; i++) c.results[i].loss = 800;
  }
  const wn_prune_subject twins[] = {subjects[0], {.name = "standard", .model = a.model}};
  o.subjects = twins;
  assert_int_equal(wn_prune_compare(a.ctx, &o, NULL, NULL, &(wn_prune_comparison){0}), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(a.ctx), "called \"standard\""));
  o.subjects = subjects;
  o.subject_count = 1; /* policy selective does not suit a standard model */
  assert_int_equal(wn_prune_compare(a.ctx, &o, NULL, NULL, &(wn_prune_comparison){0}), WN_ERR_CONFIG);
  wn_prune_comparison_clear(&c);
  wn_prune_curve_clear(&curve);
  bench_clear(&a);
  bench_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reuse),       cmocka_unit_test(test_sparse), cmocka_unit_test(test_positions),
      cmocka_unit_test(test_memory),      cmocka_unit_test(test_target), cmocka_unit_test(test_resume),
      cmocka_unit_test(test_lazy_resume), cmocka_unit_test(test_kill),   cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_long_only),   cmocka_unit_test(test_compare)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
