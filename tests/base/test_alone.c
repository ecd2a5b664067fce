/* Results are those of the context's threads, also where no thread can be made and one does the shares of all. */
#include "model/models.h"
#include "support.h"

#include <pthread.h>
#include <sys/wait.h>

#include "base/parallel.h"
#include "winnow/train.h"

enum { V = 13, STEPS = 3 };

/* Trains and decodes with four threads of the context; the bytes of all that comes out. */
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
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16), &session));
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

/* Threads that a region of four has. */
static void region_hand(void *threads) {
  if (wn_hand() == 0) *(int *)threads = wn_hands();
}
static int threads_of_region(void) {
  int threads = 0;
  wn_parallel(4, region_hand, &threads);
  return threads;
}

/* A child's work(): children have no threads but their own. `alone`: with stacks that no address space has room for. */
static size_t work_of_child(bool alone, const char *path, unsigned char *out, size_t room) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (alone && (pthread_attr_setstacksize(&attributes, (size_t)1 << 50) || pthread_setattr_default_np(&attributes)))
      _exit(3);
    if (threads_of_region() != (alone ? 1 : 4)) _exit(4);
    FILE *f = fopen(path, "wb");
    if (!f) _exit(5);
    work(f);
    _exit(fclose(f) ? 5 : 0);
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
  unsigned char *four = malloc(ROOM), *one = malloc(ROOM);
  make_folder(folder);
  snprintf(path, sizeof path, "%s/bytes", folder);
  const size_t n = work_of_child(false, path, four, ROOM);
  assert_true(n > 10000 && n < ROOM);
  assert_int_equal(work_of_child(true, path, one, ROOM), n);
  assert_memory_equal(one, four, n);
  free(four), free(one);
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_results)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
