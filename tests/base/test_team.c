/* How many threads a context uses when other programs are busy: the rule does not oscillate, and results depend on the
 * context's number of threads, not on how many of them OpenMP provides. */
#include "model/models.h"
#include "support.h"

#include <sys/wait.h>

#include "base/team.h"
#include "winnow/train.h"

enum { V = 13, STEPS = 3 };

static void test_rule(void **state) {
  (void)state;
  const struct {
    int cpus;
    double others;
    int now, expected;
  } cases[] = {
      {2, 0, 2, 2},      {2, 0.05, 2, 2}, {2, 0.35, 2, 2}, {2, 0.5, 2, 1},   {2, 1, 2, 1},     {2, 1.3, 1, 1},
      {2, 1.9, 1, 1},    {2, 0.35, 1, 1}, {2, 0.1, 1, 2},  {2, 0, 1, 2},     {1, 0.9, 1, 1},   {1, 0, 1, 1},
      {16, 0.2, 16, 16}, {16, 1, 16, 15}, {16, 8, 16, 8},  {16, 15.9, 4, 1}, {16, 2.1, 3, 14},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int found = wn_team_size(cases[i].cpus, cases[i].others, cases[i].now);
    if (found != cases[i].expected)
      fail_msg("%d CPUs, others use %g, %d threads: %d, expected %d", cases[i].cpus, cases[i].others, cases[i].now,
               found, cases[i].expected);
    /* Applied again, the rule changes nothing. */
    assert_int_equal(wn_team_size(cases[i].cpus, cases[i].others, found), found);
  }
}

/* A number of threads that the caller asked for is kept. One that the library chose is an upper limit. */
static void test_explicit(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  assert_int_equal(wn_team(NULL, 5), 5);
  OK(ctx, wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx));
  assert_int_equal(wn_team(ctx, 3), 3);
  wn_context_destroy(ctx);
  OK(ctx, wn_context_create(NULL, &ctx));
  for (int threads = 1; threads < 5; threads++) {
    const int team = wn_team(ctx, threads);
    assert_true(team >= 1 && team <= threads);
  }
  wn_context_destroy(ctx);
}

/* Trains and decodes with a context of four threads, and writes all results to `out`. */
static void work(FILE *out) {
  static const int cases[] = {7, 27, 25, 0};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    wn_context *ctx = context_of("cpu", 4);
    wn_model_config c = model_case_config(&model_cases[cases[k]]);
    if (cases[k] == 0) c.width = 96, c.ffn_width = 200; /* products large enough to be divided */
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    const wn_train_config config = {.steps = STEPS,
                                    .batch = 3,
                                    .accumulate = 1,
                                    .context = 16,
                                    .lr = 0.01,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .clip = 1,
                                    .seed = 3,
                                    .lr_mechanisms = 1,
                                    .schedule = WN_SCHED_CONSTANT,
                                    .activation_dtype = WN_F32};
    wn_trainer *trainer = NULL;
    wn_session *session = NULL;
    struct tokens x;
    float logits[V];
    tokens_of(&x, 3, 16, V, false);
    OK(ctx, wn_trainer_create(ctx, model, &config, &trainer));
    for (int i = 0; i < STEPS; i++) {
      wn_train_progress p;
      OK(ctx, wn_trainer_step(ctx, trainer, x.ids, x.targets, NULL, &p));
      fwrite(&p.loss, sizeof p.loss, 1, out);
      fwrite(&p.grad_norm, sizeof p.grad_norm, 1, out);
    }
    OK(ctx, wn_session_create(ctx, model, 1, 16, &session));
    for (int t = 0; t < 16; t += t < 8 ? 8 : 1) {
      OK(ctx, wn_session_feed(ctx, session, x.ids + t, t < 8 ? 8 : 1, 0, logits));
      fwrite(logits, sizeof logits, 1, out);
    }
    for (int i = 0; i < wn_model_tensor_count(model); i++) {
      wn_safetensors_entry e;
      OK(ctx, wn_model_tensor_at(model, i, &e));
      fwrite(e.data, 1, e.bytes, out);
    }
    wn_session_destroy(session);
    wn_trainer_destroy(trainer);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* Runs work() alone in a new process of this program, in which OpenMP may use `limit` threads. */
static size_t work_limited(const char *limit, const char *path, unsigned char *out, size_t room) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("OMP_THREAD_LIMIT", limit, 1);
    execl("/proc/self/exe", "test_team", path, (char *)NULL);
    _exit(127);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  const size_t n = fread(out, 1, room, f);
  fclose(f);
  return n;
}

static void test_results(void **state) {
  (void)state;
  enum { ROOM = 1 << 22 };
  char folder[512], path[600];
  unsigned char *all = malloc(ROOM), *fewer = malloc(ROOM);
  make_folder(folder);
  snprintf(path, sizeof path, "%s/bytes", folder);
  const size_t n = work_limited("4", path, all, ROOM);
  assert_true(n > 10000 && n < ROOM);
  for (int limit = 1; limit <= 3; limit++) {
    char text[16];
    snprintf(text, sizeof text, "%d", limit);
    assert_int_equal(work_limited(text, path, fewer, ROOM), n);
    assert_memory_equal(fewer, all, n);
  }
  free(all), free(fewer);
  remove_folder(folder);
}

int main(int argc, char **argv) {
  if (argc == 2) {
    FILE *f = fopen(argv[1], "wb");
    if (!f) return 1;
    work(f);
    return fclose(f);
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule), cmocka_unit_test(test_explicit),
                                     cmocka_unit_test(test_results)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
