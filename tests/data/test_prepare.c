/* wn_data_prepare: text, JSON lines and gzip become token files; every kind of bad input is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#if WN_HAVE_ZSTD
#include <zstd.h>
#endif
#include "winnow/data.h"

static wn_context *ctx;
static char dir[64], out[96], paths[4][128], model[128];
static wn_data_prepare_options o;
static const char *inputs[4];

static void put(const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, bytes, f), bytes);
  fclose(f);
}
static void put_text(const char *path, const char *text) {
  put(path, text, strlen(text));
}
static void put_gz(const char *path, const char *text) {
  gzFile f = gzopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
  gzclose(f);
}

static void text_times(char *text, size_t n) {
  for (size_t at = 0; at < n; at++) text[at] = at % 40 == 39 ? '\n' : (char)('a' + at * at / 7 % 26);
}

static void clean(void) {
  static const char *const names[] = {"train.bin", "val.bin",        "test.bin",
                                      "data.json", "tokenizer.json", "tokenizer.model"};
  char path[160];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", out, names[i]);
    unlink(path);
  }
}

/* Options: bytes as tokens, no validation split, one input of the given name. */
static const char *use(const char *name) {
  wn_data_prepare_options_init(&o, sizeof o);
  snprintf(paths[0], sizeof paths[0], "%s/%s", dir, name);
  inputs[0] = paths[0];
  o.inputs = inputs;
  o.input_count = 1;
  o.tokenizer = "bytes";
  o.out_dir = out;
  o.val_fraction = 0;
  return paths[0];
}

static int setup(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/wn_prepare_XXXXXX");
  if (!mkdtemp(dir) || wn_context_create(NULL, &ctx) != WN_OK) return -1;
  snprintf(out, sizeof out, "%s/out", dir);
  snprintf(model, sizeof model, "%s/t.model", dir);
  char text[6000], path[128];
  size_t n = 0;
  for (int i = 0; n + 40 < sizeof text; i++)
    n += (size_t)sprintf(text + n, "word%d other stone river %s\n", i % 13, i % 3 ? "light" : "water");
  snprintf(path, sizeof path, "%s/c.txt", dir);
  put(path, text, n);
  const char *files[1] = {path};
  wn_tokenizer_train_options t;
  wn_tokenizer_train_options_init(&t, sizeof t);
  t.inputs = files;
  t.input_count = 1;
  t.output = model;
  t.vocab_size = 300;
  t.kind = "bpe";
  wn_status status = wn_tokenizer_train(ctx, &t);
  if (status != WN_OK) print_error("%s\n", wn_context_error(ctx));
  unlink(path);
  return status == WN_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  clean();
  rmdir(out);
  unlink(model);
  return rmdir(dir);
}

/* The text of a split's tokens. The caller frees it. */
static char *text_of(const char *name, uint64_t *count) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", out, name);
  wn_token_file *f;
  wn_tokenizer *tok;
  if (wn_token_file_open(ctx, path, &f) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  *count = wn_token_file_count(f);
  int32_t *ids = malloc((*count + 1) * sizeof *ids);
  assert_int_equal(wn_token_file_read(ctx, f, 0, *count, ids), WN_OK);
  wn_token_file_close(f);
  assert_int_equal(wn_tokenizer_load(ctx, out, &tok), WN_OK); /* the folder is complete for training */
  /* separate documents: every bos becomes a bar */
  int32_t bos = wn_tokenizer_bos(tok);
  char *text = calloc(1, 1 << 20);
  size_t n = 0;
  for (uint64_t i = 0, next; i < *count; i = next) {
    next = i + 1;
    while (bos >= 0 && next < *count && ids[next] != bos) next++;
    if (bos < 0) next = *count;
    char *part;
    size_t bytes;
    assert_int_equal(wn_tokenizer_decode(ctx, tok, ids + i, next - i, &part, &bytes), WN_OK);
    if (bos >= 0) text[n++] = '|';
    assert_true(n + bytes < 1 << 20);
    memcpy(text + n, part, bytes);
    n += bytes;
    wn_text_free(part);
  }
  wn_tokenizer_destroy(tok);
  free(ids);
  return text;
}

static void expect(const char *train, uint64_t documents) {
  wn_data_prepare_result r;
  if (wn_data_prepare(ctx, &o, &r) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  uint64_t count;
  char *text = text_of("train.bin", &count);
  assert_string_equal(text, train);
  assert_int_equal(r.documents, documents);
  assert_int_equal(r.train_tokens, count);
  assert_int_equal(r.val_tokens, 0);
  free(text);
  clean();
}

static void refuse(wn_status status, const char *part) {
  wn_data_prepare_result r;
  char path[160];
  clean();
  assert_int_equal(wn_data_prepare(ctx, &o, &r), status);
  if (!strstr(wn_context_error(ctx), part)) fail_msg("\"%s\" lacks \"%s\"", wn_context_error(ctx), part);
  snprintf(path, sizeof path, "%s/train.bin", out);
  assert_int_not_equal(access(path, F_OK), 0); /* nothing unfinished is left */
  DIR *entries = opendir(out);
  for (struct dirent *e; entries && (e = readdir(entries));) assert_null(strstr(e->d_name, ".winnow-"));
  if (entries) closedir(entries);
}

static void test_text(void **state) {
  (void)state;
  const char *path = use("a.txt");
  put_text(path, "\n \nfirst\nline\n\n\n\nsecond\r\n\t\r\n third \n");
  expect("\n \nfirst\nline\n\n\n\nsecond\r\n\t\r\n third \n\n", 1); /* file: one document, with its separator */
  o.document_break = "blank";
  expect("first\nline\nsecond\n third \n", 3);
  o.document_break = "line";
  expect("first\nline\nsecond\n third \n", 4);
  put_text(path, "one\r\ntwo\r"); /* the last one is not part of a line end */
  expect("one\ntwo\r\n", 2);
  put_text(path, "\n \nfirst\nline\n\n\n\nsecond\r\n\t\r\n third \n");
  o.tokenizer = model;
  expect("|first|line|second| third ", 4);
  o.document_break = "blank";
  expect("|first\nline|second| third ", 3);
  put_text(path, "\xEF\xBB\xBFmark");
  expect("|mark", 1);
  unlink(path);
}

static void test_json_lines(void **state) {
  (void)state;
  const char *json = "{\"text\": \"one\\n\\ntwo\", \"id\": 18446744073709551615}\n\n  \n{\"body\": \"b\", \"text\": "
                     "\"\\u00fc \\ud83d\\ude00\"}\n"
                     "{\"text\": \"\"}\n{\"text\": \"nul\\u0000\"}";
  const char *path = use("a.jsonl");
  put_text(path, json);
  o.tokenizer = model;
  wn_data_prepare_result r;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  uint64_t count;
  char *text = text_of("train.bin", &count);
  assert_memory_equal(text, "|one\n\ntwo|\u00fc \U0001F600|nul\0", 25);
  free(text);
  assert_int_equal(r.documents, 3);
  assert_int_equal(r.train_bytes, 8 + 7 + 4 + 3); /* the texts, each with one separator */
  unlink(path);
  /* the same, compressed, in another field */
  path = use("a.jsonl.gz");
  put_gz(path, json);
  o.tokenizer = model;
  wn_data_prepare_result z;
  assert_int_equal(wn_data_prepare(ctx, &o, &z), WN_OK);
  assert_memory_equal(&r, &z, sizeof r);
  put_gz(path, "{\"body\": \"b\"}\n{\"body\": \"cc\"}\n");
  o.field = "body";
  expect("|b|cc", 2);
  unlink(path);
}

static char *file_of(const char *name, size_t *bytes) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", out, name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  char *data = malloc(1 << 20);
  *bytes = fread(data, 1, 1 << 20, f);
  fclose(f);
  return data;
}

static void cancel_second(void *user, uint64_t done, uint64_t total) {
  (void)total;
  if (done > 10000) wn_context_cancel(user);
}

/* A call that ended within its second input goes on after the first and ends as an undisturbed one; where anything is
 * not as it was, it says so and leaves what there is. */
static void test_go_on(void **state) {
  (void)state;
  enum { N = 3, BYTES = 8000 };
  static const char *const names[] = {"train.bin", "val.bin", "test.bin", "data.json"};
  use("a.txt");
  o.tokenizer = model, o.document_break = "line", o.val_fraction = 0.2, o.test_fraction = 0.2, o.input_count = N;
  char text[N][BYTES], path[160];
  for (int i = 0; i < N; i++) {
    for (int at = 0; at < BYTES; at += 8) memcpy(text[i] + at, "stone a\n", 8), text[i][at + i] = (char)('a' + at % 26);
    snprintf(paths[i], sizeof paths[i], "%s/%d.txt", dir, i);
    put(paths[i], text[i], BYTES);
    inputs[i] = paths[i];
  }
  wn_data_prepare_result whole, r;
  assert_int_equal(wn_data_prepare(ctx, &o, &whole), WN_OK);
  char *want[4];
  size_t bytes[4], found;
  for (int k = 0; k < 4; k++) want[k] = file_of(names[k], &bytes[k]);
  json_t *json = json_loadb(want[3], bytes[3], 0, NULL), *list = json_object_get(json, "inputs");
  assert_int_equal(json_array_size(list), N);
  uint64_t tokens = 0;
  for (int i = 0; i < N; i++) {
    json_t *one = json_array_get(list, (size_t)i);
    assert_string_equal(json_string_value(json_object_get(one, "path")), paths[i]);
    assert_int_equal(json_integer_value(json_object_get(one, "bytes")), BYTES);
    assert_int_equal(json_integer_value(json_object_get(one, "documents")), BYTES / 8);
    assert_int_equal(strlen(json_string_value(json_object_get(one, "xxh3"))), 16);
    tokens += (uint64_t)json_integer_value(json_object_get(one, "tokens"));
  }
  assert_int_equal(tokens, whole.train_tokens + whole.val_tokens + whole.test_tokens);
  json_decref(json);
  for (int stop = 0; stop < 2; stop++) { /* by cancelling, and by an input that is refused */
    clean();
    wn_context *other;
    assert_int_equal(wn_context_create(NULL, &other), WN_OK);
    if (stop) put_text(paths[1], "good\nb\xC3\x28");
    o.progress = stop ? NULL : cancel_second, o.user = other;
    assert_int_equal(wn_data_prepare(other, &o, &r), stop ? WN_ERR_FORMAT : WN_ERR_CANCELLED);
    wn_context_destroy(other);
    o.progress = NULL;
    put(paths[1], text[1], BYTES);
    snprintf(path, sizeof path, "%s/.prepare/state.json", out);
    assert_int_equal(access(path, F_OK), 0);
    put(paths[0], text[1], BYTES);
    refuse(WN_ERR_ARGUMENT, "0.txt: changed since an interrupted call read it");
    put(paths[0], text[0], BYTES);
    o.seed = 1;
    refuse(WN_ERR_ARGUMENT, "state.json: an interrupted call had another seed");
    o.seed = 0, inputs[0] = paths[2];
    refuse(WN_ERR_ARGUMENT, "state.json: input 1 of an interrupted call was");
    inputs[0] = paths[0];
    snprintf(path, sizeof path, "%s/.prepare/train.bin", out);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    FILE *f = fopen(path, "r+b");
    assert_int_equal(fseek(f, 1030, SEEK_SET), 0);
    const int byte = fgetc(f);
    for (int k = 0; k < 2; k++) {
      fseek(f, 1030, SEEK_SET);
      fputc(k ? byte : byte ^ 1, f);
      fflush(f);
      if (!k) refuse(WN_ERR_FORMAT, "train.bin: the tokens are damaged");
    }
    fclose(f);
    /* What the first input gave is taken and not made again: it may not be read but for its checksum. */
    if (wn_data_prepare(ctx, &o, &r) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    assert_memory_equal(&r, &whole, sizeof r);
    for (int k = 0; k < 4; k++) {
      char *got = file_of(names[k], &found);
      assert_int_equal(found, bytes[k]);
      assert_memory_equal(got, want[k], found);
      free(got);
    }
    snprintf(path, sizeof path, "%s/.prepare", out);
    assert_int_not_equal(access(path, F_OK), 0);
  }
  for (int k = 0; k < 4; k++) free(want[k]);
  for (int i = 0; i < N; i++) unlink(paths[i]);
}

/* Packed by zstd: in one frame and in several, the first of them to be skipped; from a pipe; and what is none. */
static void test_zstd(void **state) {
  (void)state;
  const char *path = use("a.txt.zst");
#if WN_HAVE_ZSTD
  enum { N = 700000 };
  char *text = malloc(N), *packed = malloc(2 * N);
  text_times(text, N);
  memcpy(packed, "\x50\x2A\x4D\x18\3\0\0\0abc", 11);
  size_t n = 11;
  for (size_t at = 0; at < N; at += N / 4) {
    const size_t got = ZSTD_compress(packed + n, 2 * N - n, text + at, N / 4, 1);
    assert_false(ZSTD_isError(got));
    n += got;
  }
  for (int skip = 0; skip <= 11; skip += 11) {
    put(path, packed + skip, n - (size_t)skip);
    wn_data_prepare_result r;
    if (wn_data_prepare(ctx, &o, &r) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    uint64_t count;
    char *back = text_of("train.bin", &count);
    assert_int_equal(count, N + 1);
    assert_memory_equal(back, text, N);
    free(back);
  }
  put(path, packed, n - 5);
  refuse(WN_ERR_FORMAT, "a.txt.zst: the zstd data are truncated (after line");
  packed[n - 5000] ^= 0x55;
  put(path, packed, n);
  refuse(WN_ERR_FORMAT, "a.txt.zst: ");
  /* A pipe of JSON lines is text; it is unpacked by its first bytes. */
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  n = ZSTD_compress(packed, 2 * N, "piped", 5, 1);
  assert_int_equal(write(ends[1], packed, n), n);
  close(ends[1]);
  char name[64];
  snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
  inputs[0] = name;
  expect("piped\n", 1);
  close(ends[0]);
  free(packed);
  free(text);
#else
  put(path, "\x28\xB5\x2F\xFD\0\0", 6);
  refuse(WN_ERR_UNSUPPORTED, "these are zstd data, which this build cannot read (WINNOW_ZSTD=OFF)");
#endif
  inputs[0] = paths[0];
  put_text(path, "plain");
  refuse(WN_ERR_FORMAT, "a.txt.zst: not zstd data, in spite of its name");
  put_gz(path, "packed otherwise");
  refuse(WN_ERR_FORMAT, "a.txt.zst: not zstd data, in spite of its name");
  unlink(path);
}

/* A folder's files come in the order of their paths, between the inputs around it. */
static void test_folders(void **state) {
  (void)state;
  use("a.txt");
  static const char *const names[] = {"shards", "shards/b", "shards/.git", "shards/empty"};
  static const char *const files[][2] = {{"z.txt", "Z"},
                                         {"a.txt", "A"},
                                         {"shards/10.txt", "10"},
                                         {"shards/9.txt", "9"},
                                         {"shards/b/x.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n"},
                                         {"shards/.hidden", "h"},
                                         {"shards/.git/c.txt", "h"}};
  char path[160];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    assert_int_equal(mkdir(path, 0777), 0);
  }
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, files[i][0]);
    put_text(path, files[i][1]);
  }
  static const char *const given[] = {"z.txt", "shards", "a.txt"};
  for (int i = 0; i < 3; i++) {
    snprintf(paths[i], sizeof paths[i], "%s/%s", dir, given[i]);
    inputs[i] = paths[i];
  }
  o.input_count = 3;
  expect("Z\n10\n9\nx\ny\nA\n", 6);
  snprintf(path, sizeof path, "%s/shards/README.md", dir);
  put_text(path, "readme");
  refuse(WN_ERR_FORMAT, "shards/README.md: in a folder, names of texts end in .txt or .jsonl");
  unlink(path);
  snprintf(path, sizeof path, "%s/shards/loop", dir);
  assert_int_equal(symlink("..", path), 0);
  refuse(WN_ERR_ARGUMENT, "shards/loop: a link to a folder");
  unlink(path);
  snprintf(paths[0], sizeof paths[0], "%s/shards/empty", dir);
  refuse(WN_ERR_FORMAT, "shards/empty: no files in the folder");
  for (size_t i = sizeof files / sizeof *files; i-- > 0;) {
    snprintf(path, sizeof path, "%s/%s", dir, files[i][0]);
    unlink(path);
  }
  for (size_t i = sizeof names / sizeof *names; i-- > 0;) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    assert_int_equal(rmdir(path), 0);
  }
}

/* A test split takes documents from the training split only. */
static void test_test_fraction(void **state) {
  (void)state;
  enum { N = 600 };
  static char all[N * 16];
  size_t n = 0;
  uint64_t count[4];
  char *texts[4];
  wn_data_prepare_result r;
  for (int i = 0; i < N; i++) n += (size_t)sprintf(all + n, "d%d\n", i);
  put(use("a.txt"), all, n);
  o.document_break = "line";
  o.val_fraction = 0.2;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  assert_int_equal(r.test_tokens, 0);
  texts[0] = text_of("val.bin", &count[0]);
  o.test_fraction = 0.3;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  assert_int_equal(r.train_tokens + r.val_tokens + r.test_tokens, n);
  texts[1] = text_of("val.bin", &count[1]);
  texts[2] = text_of("test.bin", &count[2]);
  texts[3] = text_of("train.bin", &count[3]);
  assert_int_equal(count[0], count[1]);
  assert_string_equal(texts[0], texts[1]);
  int seen[N] = {0}, tests = 0;
  for (int k = 1; k < 4; k++)
    for (char *line = strtok(texts[k], "\n"); line; line = strtok(NULL, "\n")) seen[atoi(line + 1)]++, tests += k == 2;
  for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
  assert_in_range(tests, 120, 240); /* 180 expected */
  for (int k = 0; k < 4; k++) free(texts[k]);
  /* The next preparation removes a test.bin that an earlier one made, but not one that none made. */
  char path[160];
  snprintf(path, sizeof path, "%s/test.bin", out);
  o.test_fraction = 0;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  assert_int_equal(access(path, F_OK), -1);
  put_text(path, "own");
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  assert_int_equal(access(path, F_OK), 0);
  o.test_fraction = 0.8;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "test fraction of 0.8"));
  o.test_fraction = 0, o.test_bytes = 10;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "validation fraction of 0.2 with"));
  o.val_fraction = 0;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "document break \"line\" with"));
  o.test_fraction = 0.1;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "one or the other"));
}

static void test_split(void **state) {
  (void)state;
  enum { N = 600 };
  static char all[N * 16];
  size_t n = 0;
  for (int i = 0; i < N; i++) n += (size_t)sprintf(all + n, "d%d\n", i);
  const char *path = use("a.txt");
  put(path, all, n);
  o.document_break = "line";
  o.val_fraction = 0.2;
  bool val[2][N] = {{false}};
  uint64_t count;
  for (int seed = 0; seed < 2; seed++) {
    o.seed = (uint64_t)seed;
    wn_data_prepare_result r;
    assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
    assert_int_equal(r.train_tokens + r.val_tokens, n);
    assert_int_equal(r.train_bytes + r.val_bytes, n);
    int seen[N] = {0};
    for (int k = 0; k < 2; k++) {
      char *text = text_of(k ? "val.bin" : "train.bin", &count);
      for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int i = atoi(line + 1);
        assert_int_equal(seen[i]++, 0);
        if (k) val[seed][i] = true;
      }
      free(text);
    }
    int vals = 0;
    for (int i = 0; i < N; i++) {
      assert_int_equal(seen[i], 1); /* each document is in one split, whole */
      vals += val[seed][i];
    }
    assert_in_range(vals, 70, 170); /* 120 expected */
  }
  assert_memory_not_equal(val[0], val[1], sizeof val[0]);
  /* appending documents does not move earlier ones to another split */
  put(path, all, n / 2);
  o.seed = 0;
  wn_data_prepare_result r;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  char *text = text_of("val.bin", &count);
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
    assert_true(val[0][atoi(line + 1)] || !line[2]);
  free(text);
  unlink(path);
}

/* A document larger than the buffer. */
static void test_long_document(void **state) {
  (void)state;
  size_t lines = 60000, n = 0, bytes;
  char *text = malloc(lines * 40);
  for (size_t i = 0; i < lines; i++) n += (size_t)sprintf(text + n, "stone river %zu light\n", i * 7919 % 10007);
  const char *path = use("a.txt");
  put(path, text, n);
  assert_true(n > (1 << 20) + 1000);
  for (int k = 0; k < 2; k++) {
    o.tokenizer = k ? model : "bytes";
    wn_data_prepare_result r;
    assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
    assert_int_equal(r.documents, 1);
    wn_tokenizer *tok;
    wn_token_file *f;
    char name[160], *back;
    snprintf(name, sizeof name, "%s/train.bin", out);
    assert_int_equal(wn_tokenizer_load(ctx, o.tokenizer, &tok), WN_OK);
    assert_int_equal(wn_token_file_open(ctx, name, &f), WN_OK);
    int32_t *whole, *ids = malloc(r.train_tokens * sizeof *ids);
    size_t count;
    assert_int_equal(wn_token_file_read(ctx, f, 0, r.train_tokens, ids), WN_OK);
    assert_int_equal(wn_tokenizer_encode(ctx, tok, text, n, k == 1, false, &whole, &count), WN_OK);
    assert_int_equal(count + (k == 0), r.train_tokens); /* bytes: plus the newline at the document's end */
    assert_memory_equal(ids, whole, count * sizeof *ids);
    assert_int_equal(wn_tokenizer_decode(ctx, tok, whole, count, &back, &bytes), WN_OK);
    assert_int_equal(bytes, n);
    assert_memory_equal(back, text, n);
    wn_text_free(back);
    wn_tokens_free(whole);
    free(ids);
    wn_token_file_close(f);
    wn_tokenizer_destroy(tok);
  }
  free(text);
  unlink(path);
}

static void test_summary(void **state) {
  (void)state;
  const char *path = use("a.txt");
  put_text(path, "some text\n\nmore\n");
  o.document_break = "blank";
  o.tokenizer = model;
  wn_data_prepare_result r;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_OK);
  char name[160];
  snprintf(name, sizeof name, "%s/data.json", out);
  json_t *j = json_load_file(name, 0, NULL), *t = json_object_get(j, "train");
  assert_non_null(j);
  assert_string_equal(json_string_value(json_object_get(j, "tokenizer")), "sentencepiece");
  assert_int_equal(json_integer_value(json_object_get(j, "vocab_size")), 300);
  assert_int_equal(json_integer_value(json_object_get(j, "document_token")), 1);
  assert_int_equal(json_integer_value(json_object_get(t, "tokens")), r.train_tokens);
  assert_int_equal(json_integer_value(json_object_get(t, "bytes")), 9 + 4 + 2);
  assert_int_equal(json_integer_value(json_object_get(t, "documents")), 2);
  json_decref(j);
  unlink(path);
}

static void test_refused(void **state) {
  (void)state;
  const char *path = use("a.txt");
  o.tokenizer = model;
  refuse(WN_ERR_IO, "No such file");
  put_text(path, "");
  refuse(WN_ERR_FORMAT, "a.txt: the file is empty");
  put_text(path, " \n\n\t\n");
  o.document_break = "blank";
  refuse(WN_ERR_FORMAT, "no text");
  put_text(path, "good\nb\xC3\x28");
  refuse(WN_ERR_FORMAT, "a.txt:2: not UTF-8 at byte 6 (0xc3)");
  put_text(path, "one document");
  o.val_fraction = 0.5;
  refuse(WN_ERR_ARGUMENT, "none of the 1 document");
  put_text(path, "one document, of which n\xC3\x28thing is read");
  o.document_break = "file";
  refuse(WN_ERR_ARGUMENT, "none of the 1 document");
  o.val_fraction = 1;
  refuse(WN_ERR_ARGUMENT, "validation fraction");
  o.val_fraction = 0;
  o.document_break = "page";
  refuse(WN_ERR_ARGUMENT, "\"page\"");
  o.document_break = "file";
  o.layout = "hdf5";
  refuse(WN_ERR_ARGUMENT, "\"hdf5\"");
  o.layout = "llmc";
  o.tokenizer = path;
  refuse(WN_ERR_FORMAT, "not a SentencePiece model");
  o.input_count = 0;
  refuse(WN_ERR_ARGUMENT, "no input");
  unlink(path);

  path = use("a.jsonl");
  put_text(path, "{\"text\": \"a\"}\n{\"text\": oops}\n");
  refuse(WN_ERR_FORMAT, "a.jsonl:2: malformed JSON at column");
  put_text(path, "{\"text\": \"a\"}\n[1]\n");
  refuse(WN_ERR_FORMAT, "a.jsonl:2: expected one JSON object");
  put_text(path, "{\"txt\": \"a\"}\n");
  refuse(WN_ERR_FORMAT, "a.jsonl:1: no field \"text\"");
  put_text(path, "{\"text\": 1}\n");
  refuse(WN_ERR_FORMAT, "not a string");
  put_text(path, "{\"text\": \"\xFF\"}\n");
  refuse(WN_ERR_FORMAT, "a.jsonl:1: malformed JSON");
  static char lists[100000] = "{\"text\": \"a\", \"x\": [";
  for (size_t at = strlen(lists); at < sizeof lists - 8; at += 3) memcpy(lists + at, "[],", 4);
  strcpy(lists + strlen(lists) - 1, "]}\n");
  put_text(path, lists); /* would take a hundred times its size in memory */
  refuse(WN_ERR_FORMAT, "a.jsonl:1: the JSON has about 99");
  unlink(path);

  path = use("a.jsonl.gz");
  put_text(path, "{\"text\": \"plain\"}\n");
  refuse(WN_ERR_FORMAT, "not gzip");
  static char json[40000];
  size_t n = 0;
  for (unsigned i = 0; n + 40 < sizeof json; i++)
    n += (size_t)sprintf(json + n, "{\"text\": \"%u\"}\n", i * 2654435761u);
  put_gz(path, json);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(truncate(path, st.st_size / 2), 0);
  refuse(WN_ERR_FORMAT, "a.jsonl.gz: the gzip data are truncated (after line");
  put_gz(path, json);
  FILE *f = fopen(path, "r+b");
  fseek(f, st.st_size / 2, SEEK_SET);
  fwrite("garbage garbage garbage", 1, 23, f);
  fclose(f);
  refuse(WN_ERR_FORMAT, "a.jsonl.gz");
  assert_null(strstr(wn_context_error(ctx), "<fd:"));
  unlink(path);
}

static void test_cancel(void **state) {
  (void)state;
  wn_context *other;
  assert_int_equal(wn_context_create(NULL, &other), WN_OK);
  const char *path = use("a.txt");
  put_text(path, "text");
  wn_context_cancel(other);
  wn_data_prepare_result r;
  assert_int_equal(wn_data_prepare(other, &o, &r), WN_ERR_CANCELLED);
  wn_context_destroy(other);
  unlink(path);
}

struct watched {
  wn_context *ctx;
  uint64_t done, total;
  int calls;
};
static void cancel_at_once(void *user, uint64_t done, uint64_t total) {
  struct watched *w = user;
  if (w->calls++ == 0) w->done = done, w->total = total;
  wn_context_cancel(w->ctx);
}

/* Cancelling also works within a line: the file may have only one. */
static void test_cancel_in_a_line(void **state) {
  (void)state;
  enum { N = 3 << 20 };
  char *line = malloc(N);
  memset(line, 'a', N);
  wn_data_prepare_result r;
  const char *path = use("a.txt");
  put(path, line, N);
  struct watched w = {0};
  assert_int_equal(wn_context_create(NULL, &w.ctx), WN_OK);
  o.progress = cancel_at_once, o.user = &w;
  assert_int_equal(wn_data_prepare(w.ctx, &o, &r), WN_ERR_CANCELLED);
  assert_int_equal(w.total, N);
  assert_true(w.calls == 1 && w.done > 0 && w.done < N / 2);
  wn_context_destroy(w.ctx);
  unlink(path);
  free(line);
}

static void expect_bytes(const char *name, const char *text, size_t from, size_t bytes) {
  char path[160];
  wn_token_file *f;
  snprintf(path, sizeof path, "%s/%s", out, name);
  if (wn_token_file_open(ctx, path, &f) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  assert_int_equal(wn_token_file_count(f), bytes);
  int32_t *ids = malloc((bytes + 1) * sizeof *ids);
  assert_int_equal(wn_token_file_read(ctx, f, 0, bytes, ids), WN_OK);
  for (size_t i = 0; i < bytes; i++) assert_int_equal(ids[i], (unsigned char)text[from + i]);
  free(ids);
  wn_token_file_close(f);
}

/* Split by position, as for text8: byte for byte, with nothing added, across several files. */
static void test_split_by_place(void **state) {
  (void)state;
  enum { ALL = 40000, FIRST = 17001 };
  char *text = malloc(ALL);
  for (int i = 0; i < ALL; i++) text[i] = (char)(i * 7 + i / 251); /* not UTF-8: with line ends and zeros */
  use("a.txt");
  snprintf(paths[1], sizeof paths[1], "%s/b.txt", dir);
  inputs[1] = paths[1];
  o.input_count = 2;
  put(paths[0], text, FIRST);
  put(paths[1], text + FIRST, ALL - FIRST);
  static const size_t splits[][2] = {{2000, 3000}, {0, 100}, {30000, 9999}, {20000, 0}};
  for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
    o.val_bytes = splits[k][0], o.test_bytes = splits[k][1];
    const size_t train = ALL - o.val_bytes - o.test_bytes;
    wn_data_prepare_result r;
    if (wn_data_prepare(ctx, &o, &r) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    assert_true(r.bytes == ALL && r.train_tokens == train && r.val_bytes == o.val_bytes);
    assert_true(r.test_tokens == o.test_bytes && r.test_bytes == o.test_bytes && r.train_bytes == train);
    expect_bytes("train.bin", text, 0, train);
    expect_bytes("val.bin", text, train, o.val_bytes);
    if (o.test_bytes) expect_bytes("test.bin", text, train + o.val_bytes, o.test_bytes);
    char path[160];
    snprintf(path, sizeof path, "%s/data.json", out);
    json_t *j = json_load_file(path, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "test"), "bytes")), o.test_bytes);
    assert_int_equal(json_object_get(j, "test") != NULL, o.test_bytes > 0);
    assert_int_equal(json_integer_value(json_object_get(j, "vocab_size")), 256);
    json_decref(j);
    clean();
  }
  wn_data_prepare_result r;
  o.val_bytes = ALL - 10, o.test_bytes = 10;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "40000 bytes"));
  o.val_bytes = UINT64_MAX;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  o.val_bytes = 10;
  o.tokenizer = model;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "bytes"));
  unlink(paths[1]);
  unlink(paths[0]);
  use("a.jsonl");
  put_text(paths[0], "{\"text\": \"some text that is long enough\"}\n");
  o.test_bytes = 10;
  assert_int_equal(wn_data_prepare(ctx, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "plain files"));
  unlink(paths[0]);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split_by_place),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_json_lines),
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_test_fraction),
      cmocka_unit_test(test_zstd),
      cmocka_unit_test(test_go_on),
      cmocka_unit_test(test_folders),
      cmocka_unit_test(test_summary),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_long_document),
      cmocka_unit_test(test_cancel),
      cmocka_unit_test(test_cancel_in_a_line),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
