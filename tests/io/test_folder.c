/* Files of a folder that are replaced together: what readers find meanwhile, which files disappear with the old
 * generation, and folders from strangers in which links replace the files of a save. */
#include "train/tiny.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "io/folder.h"
#include "winnow/winnow.h"

struct bed {
  wn_context *ctx;
  char root[256], dir[300], outside[300];
};

static const char *in(const char *dir, const char *name) {
  static char paths[6][8192];
  static int next;
  char path[8192];
  if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
    fail_msg("%s is too long", name); /* its name may be that of a real file */
  return memcpy(paths[next++ % 6], path, sizeof path);
}
static void put(const char *dir, const char *name, const char *text) {
  FILE *f = fopen(in(dir, name), "w");
  if (!f || fputs(text, f) == EOF || fclose(f) != 0) fail_msg("cannot write %s/%s", dir, name);
}
/* The file has this content; NULL: it does not exist. */
static void holds(const char *dir, const char *name, const char *text) {
  char *found = tiny_read(dir, name, NULL);
  if (!text ? found != NULL : !found || strcmp(found, text) != 0)
    fail_msg("%s/%s: %s, expected %s", dir, name, found ? found : "none", text ? text : "none");
  free(found);
}
static void reads(const struct bed *b, const char *name, const char *text) {
  char path[700];
  must(b->ctx, wn_folder_file(b->ctx, path, sizeof path, b->dir, name));
  assert_int_equal(wn_folder_has(b->dir, name), text != NULL);
  if (!text) return assert_int_not_equal(access(path, F_OK), 0);
  char *found = tiny_read("", path, NULL);
  assert_non_null(found);
  assert_string_equal(found, text);
  free(found);
}

static void bed_init(struct bed *b) {
  tiny_folder(b->root);
  snprintf(b->dir, sizeof b->dir, "%s/dir", b->root);
  snprintf(b->outside, sizeof b->outside, "%s/outside", b->root);
  b->ctx = tiny_context("cpu", 1);
  assert_int_equal(mkdir(b->dir, 0777), 0);
  assert_int_equal(mkdir(b->outside, 0777), 0);
  put(b->dir, "a", "old a");
  put(b->dir, "b", "old b");
  put(b->dir, "c", "old c");
  put(b->dir, "other", "mine");
  put(b->outside, "a", "theirs");
  put(b->outside, "b", "theirs too");
}
static void bed_clear(struct bed *b) {
  wn_context_destroy(b->ctx);
  tiny_remove(b->root);
}

static void test_commit(void **state) {
  (void)state;
  struct bed b;
  bed_init(&b);
  struct wn_folder f, second;
  must(b.ctx, wn_folder_begin(b.ctx, b.dir, &f));
  put(f.next, "a", "new a");
  put(f.next, "b", "new b");
  must(b.ctx, wn_folder_drop(b.ctx, &f, "b")); /* the new generation has b, so it stays */
  must(b.ctx, wn_folder_drop(b.ctx, &f, "c"));
  must(b.ctx, wn_folder_drop(b.ctx, &f, "none"));
  assert_int_equal(wn_folder_drop(b.ctx, &f, "../outside/a"), WN_ERR_ARGUMENT);
  reads(&b, "a", "old a");
  assert_int_equal(wn_folder_begin(b.ctx, b.dir, &second), WN_ERR_IO); /* one writer at a time */
  assert_non_null(strstr(wn_context_error(b.ctx), "another process"));
  assert_int_equal(wn_folder_recover(b.ctx, b.dir), WN_ERR_IO);
  bool committed = false;
  must(b.ctx, wn_folder_commit(b.ctx, &f, &committed));
  assert_true(committed);
  wn_folder_abort(&f); /* harmless a second time */
  holds(b.dir, "a", "new a"), holds(b.dir, "b", "new b"), holds(b.dir, "c", NULL), holds(b.dir, "other", "mine");
  assert_int_not_equal(access(in(b.dir, ".next"), F_OK), 0);
  assert_int_not_equal(access(in(b.dir, ".commit"), F_OK), 0);
  /* Aborted: nothing has changed, and a folder that was made for it is gone. */
  must(b.ctx, wn_folder_begin(b.ctx, b.dir, &f));
  put(f.next, "a", "never");
  wn_folder_abort(&f);
  holds(b.dir, "a", "new a");
  assert_int_not_equal(access(in(b.dir, ".next"), F_OK), 0);
  must(b.ctx, wn_folder_begin(b.ctx, in(b.root, "fresh"), &f));
  wn_folder_abort(&f);
  assert_int_not_equal(access(in(b.root, "fresh"), F_OK), 0);
  bed_clear(&b);
}

/* A save killed after its commit point, after each number of moved files. Readers find the new generation and change
 * nothing; the next writer finishes the save. */
static void test_readers(void **state) {
  (void)state;
  for (int moved = 0; moved <= 4; moved++) {
    struct bed b;
    char path[700];
    bed_init(&b);
    assert_int_equal(mkdir(in(b.dir, ".commit"), 0777), 0);
    const char *const names[] = {"a", "b"};
    if (moved < 2) put(b.dir, ".commit/.gone", "c\nd\n");
    if (moved >= 1) remove(in(b.dir, "c")); /* the list is removed after the files that it lists */
    for (int i = 0; i < 2; i++) put(b.dir, moved > 2 + i ? names[i] : in(".commit", names[i]), "new");
    assert_int_equal(mkdir(in(b.dir, ".next"), 0777), 0);
    put(b.dir, ".next/a", "half");
    reads(&b, "a", "new"), reads(&b, "b", "new"), reads(&b, "c", NULL), reads(&b, "other", "mine");
    must(b.ctx, wn_folder_path(b.ctx, path, sizeof path, in(b.dir, "a")));
    assert_string_equal(path, moved > 2 ? in(b.dir, "a") : in(b.dir, ".commit/a"));
    holds(b.dir, ".next/a", "half");
    holds(b.dir, "c", moved >= 1 ? NULL : "old c");
    for (int again = 0; again < 2; again++) must(b.ctx, wn_folder_recover(b.ctx, b.dir));
    holds(b.dir, "a", "new"), holds(b.dir, "b", "new"), holds(b.dir, "c", NULL), holds(b.dir, "other", "mine");
    assert_int_not_equal(access(in(b.dir, ".next"), F_OK), 0);
    assert_int_not_equal(access(in(b.dir, ".commit"), F_OK), 0);
    bed_clear(&b);
  }
  char path[64];
  must(NULL, wn_folder_path(NULL, path, sizeof path, "plain.bin"));
  assert_string_equal(path, "plain.bin");
  must(NULL, wn_folder_path(NULL, path, sizeof path, "/plain.bin"));
  assert_string_equal(path, "/plain.bin");
}

/* Both names refer to one file, as a crash can leave them on a file system without a journal. */
static void test_two_names(void **state) {
  (void)state;
  struct bed b;
  bed_init(&b);
  assert_int_equal(mkdir(in(b.dir, ".commit"), 0777), 0);
  assert_int_equal(link(in(b.dir, "a"), in(b.dir, ".commit/a")), 0);
  must(b.ctx, wn_folder_recover(b.ctx, b.dir));
  holds(b.dir, "a", "old a");
  assert_int_not_equal(access(in(b.dir, ".commit"), F_OK), 0);
  bed_clear(&b);
}

static void refused(struct bed *b, const char *what, const char *name, const char *is) {
  struct wn_folder f;
  for (int i = 0; i < 2; i++) {
    const wn_status status = i ? wn_folder_begin(b->ctx, b->dir, &f) : wn_folder_recover(b->ctx, b->dir);
    const char *error = wn_context_error(b->ctx);
    if (status == WN_OK) fail_msg("%s: accepted", what);
    if (!strstr(error, name) || !strstr(error, is) || strchr(error, '\n')) fail_msg("%s: %s", what, error);
  }
  holds(b->outside, "a", "theirs"), holds(b->outside, "b", "theirs too");
  holds(b->dir, "a", "old a"), holds(b->dir, "b", "old b"), holds(b->dir, "other", "mine");
}

/* A link in every place where a save moves or removes a file by name. */
static void test_links(void **state) {
  (void)state;
  static const struct {
    const char *folder, *link, *target; /* relative to dir */
  } cases[] = {{NULL, ".next", "../outside"},
               {NULL, ".commit", "../outside"},
               {NULL, ".next", "../outside/a"},
               {NULL, ".commit", "nowhere"},
               {".next", ".next/a", "../../outside/a"},
               {".commit", ".commit/a", "../../outside/a"},
               {".next", ".next/sub", "../../outside"},
               {".commit", ".commit/sub", "../../outside"},
               {".commit", ".commit/.gone", "../../outside/a"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct bed b;
    bed_init(&b);
    if (cases[i].folder) {
      assert_int_equal(mkdir(in(b.dir, cases[i].folder), 0777), 0);
      put(b.dir, in(cases[i].folder, "b"), "a file of the save");
    }
    assert_int_equal(symlink(cases[i].target, in(b.dir, cases[i].link)), 0);
    refused(&b, cases[i].link, cases[i].link, "symbolic link");
    struct stat st;
    assert_int_equal(lstat(in(b.dir, cases[i].link), &st), 0);
    if (cases[i].folder) holds(b.dir, in(cases[i].folder, "b"), "a file of the save"); /* nothing half done */
    char path[700];
    const bool commit = !strncmp(cases[i].link, ".commit", 7), list = strstr(cases[i].link, ".gone") != NULL;
    const char *name = !cases[i].folder ? "a" : list ? "c" : cases[i].link + strlen(cases[i].folder) + 1;
    if (commit) assert_int_equal(wn_folder_file(b.ctx, path, sizeof path, b.dir, name), WN_ERR_IO);
    bed_clear(&b);
  }
}

static void test_strange_entries(void **state) {
  (void)state;
  static const char *const lists[] = {"../outside/a\n", "/etc/none\n", "sub/a\n", ".\n", "..\n",
                                      ".hidden\n",      "a",           "a\n\n",   "\n",  "a\nb"};
  struct bed b;
  for (int i = 0; i < 4; i++) {
    const char *sub = i < 2 ? ".next" : ".commit";
    bed_init(&b);
    if (i % 2 == 0) {
      put(b.dir, sub, "a file");
      refused(&b, sub, sub, "is a regular file");
    } else {
      assert_int_equal(mkdir(in(b.dir, sub), 0777), 0);
      assert_int_equal(mkdir(in(b.dir, in(sub, "a")), 0777), 0);
      refused(&b, sub, in(sub, "a"), "is a folder");
    }
    bed_clear(&b);
  }
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    bed_init(&b);
    assert_int_equal(mkdir(in(b.dir, ".commit"), 0777), 0);
    put(b.dir, ".commit/.gone", lists[i]);
    refused(&b, lists[i], ".gone", "no list of file names");
    bed_clear(&b);
  }
  bed_init(&b);
  assert_int_equal(mkdir(in(b.dir, ".commit"), 0777), 0);
  assert_int_equal(mkfifo(in(b.dir, ".commit/.gone"), 0666), 0);
  refused(&b, "a FIFO", ".gone", "is a FIFO");
  bed_clear(&b);
}

/* Another kind of tokenizer replaces the previous one's files. Files that are not the model's stay. */
static void test_tokenizers(void **state) {
  (void)state;
  struct bed b;
  bed_init(&b);
  wn_tokenizer *bytes = NULL;
  must(b.ctx, wn_tokenizer_load(b.ctx, "bytes", &bytes));
  put(b.dir, "tokenizer.model", "another");
  put(b.dir, "tokenizer_config.json", "another");
  must(b.ctx, wn_tokenizer_save(b.ctx, bytes, b.dir));
  holds(b.dir, "tokenizer.model", NULL), holds(b.dir, "tokenizer_config.json", NULL), holds(b.dir, "other", "mine");
  wn_tokenizer *again = NULL;
  must(b.ctx, wn_tokenizer_load(b.ctx, b.dir, &again));
  assert_string_equal(wn_tokenizer_kind(again), "bytes");
  wn_tokenizer_destroy(again);
  wn_tokenizer_destroy(bytes);
  bed_clear(&b);
}

/* A model that another process keeps replacing is read as one of its generations, never as a mixture. */
static void test_live_writer(void **state) {
  (void)state;
  enum { T = 8, V = 40, LOADS = 60 };
  struct bed b;
  bed_init(&b);
  wn_model *models[2], *found;
  float want[2][T * V], logits[T * V];
  const int32_t tokens[T] = {1, 5, 2, 9, 7, 12, 3, 8};
  for (int i = 0; i < 2; i++) {
    wn_model_config c;
    wn_model_config_init(&c);
    c.vocab_size = V, c.context = T, c.layers = 1, c.width = 16, c.heads = 2, c.kv_heads = 2, c.head_size = 8;
    c.ffn_width = 10, c.init_std = 0.3, c.position = i ? WN_POS_ROPE : WN_POS_NONE;
    must(b.ctx, wn_model_create(b.ctx, &c, (uint64_t)i + 1, &models[i]));
    must(b.ctx, wn_model_logits(b.ctx, models[i], tokens, 1, T, NULL, want[i]));
  }
  must(b.ctx, wn_model_save(b.ctx, models[0], NULL, b.dir));
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0)
    for (int i = 1;; i++)
      if (wn_model_save(b.ctx, models[i % 2], NULL, b.dir) != WN_OK) _exit(1);
  int seen[2] = {0, 0};
  char bad[2048] = "";
  /* Under a sanitizer a load starts anew many times, until it falls between two saves: there fewer are enough. */
  const double enough = wn_seconds_now() + 5;
  for (int i = 0; !*bad && ((i < LOADS && wn_seconds_now() < enough) || ((!seen[0] || !seen[1]) && i < 100 * LOADS));
       i++) {
    if (wn_model_load(b.ctx, b.dir, NULL, &found) != WN_OK) {
      snprintf(bad, sizeof bad, "load %d: %s", i, wn_context_error(b.ctx));
      break;
    }
    must(b.ctx, wn_model_logits(b.ctx, found, tokens, 1, T, NULL, logits));
    wn_model_destroy(found);
    const int which = memcmp(logits, want[1], sizeof logits) == 0;
    if (!which && memcmp(logits, want[0], sizeof logits) != 0) snprintf(bad, sizeof bad, "load %d: a mixture", i);
    seen[which]++;
  }
  int code;
  const pid_t ended = waitpid(pid, &code, WNOHANG); /* it was at work all the time */
  if (!ended) kill(pid, SIGKILL), waitpid(pid, &code, 0);
  assert_int_equal(ended, 0);
  if (*bad) fail_msg("%s", bad);
  assert_true(seen[0] > 0 && seen[1] > 0);
  for (int i = 0; i < 2; i++) wn_model_destroy(models[i]);
  bed_clear(&b);
}

/* A reader slower than a save still gets a whole generation, and the writer loses none of its own because of it. */
static void test_slow_reader(void **state) {
  (void)state;
  struct bed b;
  bed_init(&b);
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    for (int i = 0;; i++) {
      struct wn_folder f;
      if (wn_folder_begin(b.ctx, b.dir, &f) != WN_OK) _exit(1);
      put(f.next, "config.json", i % 2 ? "odd" : "even");
      if (wn_folder_commit(b.ctx, &f, NULL) != WN_OK) _exit(2);
    }
  }
  for (int i = 0; i < 5; i++) {
    struct wn_folder_reading r = {.dir = b.dir};
    bool whole = false;
    while (!whole && wn_folder_reading_begin(&r)) {
      usleep(20000);
      whole = wn_folder_reading_end(&r);
    }
    assert_true(whole);
    usleep(20000);
  }
  int code;
  const pid_t ended = waitpid(pid, &code, WNOHANG);
  if (!ended) kill(pid, SIGKILL), waitpid(pid, &code, 0);
  assert_int_equal(ended, 0);
  bed_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_commit),          cmocka_unit_test(test_readers),
                                     cmocka_unit_test(test_two_names),       cmocka_unit_test(test_links),
                                     cmocka_unit_test(test_strange_entries), cmocka_unit_test(test_tokenizers),
                                     cmocka_unit_test(test_live_writer),     cmocka_unit_test(test_slow_reader)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
