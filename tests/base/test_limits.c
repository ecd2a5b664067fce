/* Limits of files. The header's are those of docs/file-formats.md. JSON of every kind is read at its limit and refused
 * beyond it before it is parsed. Peak memory stays within what that page says. */
#include "support.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "base/fields.h"
#include "base/limits.h"
#include "text/vocab.h"
#include "winnow/safetensors.h"

static wn_context *ctx;

static const struct {
  enum wn_json_kind kind;
  const char *id, *name;
  size_t bytes, values;
} kinds[] = {
#define ROW(id, name, bytes, values) {WN_JSON_##id, #id, name, bytes, values},
    WN_JSON_KINDS(ROW)
#undef ROW
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* "1,048,576" */
static const char *grouped(size_t n) {
  static char texts[16][40];
  static int next;
  char plain[32], *out = texts[next++ % 16];
  const int digits = snprintf(plain, sizeof plain, "%zu", n);
  char *to = out;
  for (int i = 0; i < digits; i++) {
    if (i && (digits - i) % 3 == 0) *to++ = ',';
    *to++ = plain[i];
  }
  *to = 0;
  return out;
}

static const char *sized(size_t n) {
  static char texts[16][40];
  static int next;
  char *out = texts[next++ % 16];
  if (n % WN_GIB == 0)
    snprintf(out, 40, "%zu GiB", n / WN_GIB);
  else if (n % WN_MIB == 0)
    snprintf(out, 40, "%zu MiB", n / WN_MIB);
  else
    snprintf(out, 40, "%zu KiB", n / WN_KIB);
  return out;
}

static void page_says_the_same(void **state) {
  (void)state;
  FILE *f = fopen(WN_TEST_DIR "/../docs/file-formats.md", "rb");
  assert_non_null(f);
  static char page[1 << 18];
  const size_t n = fread(page, 1, sizeof page - 1, f);
  fclose(f);
  assert_true(n > 0 && n < sizeof page - 1);
  for (int k = 0; k < KINDS; k++) {
    char row[200];
    snprintf(row, sizeof row, " | %s | %s |", sized(kinds[k].bytes), grouped(kinds[k].values));
    if (!strstr(page, row)) fail_msg("docs/file-formats.md has no row that ends \"%s\" for %s", row, kinds[k].id);
  }
  const struct {
    const char *format;
    const char *value;
  } others[] = {{"a safetensors header of %s", sized(WN_LIMIT_SAFETENSORS_HEADER)},
                {"a GGUF file of %s tensors", grouped(WN_LIMIT_GGUF_TENSORS)},
                {"and %s keys", grouped(WN_LIMIT_GGUF_KEYS)},
                {"names of %s", sized(WN_LIMIT_TENSOR_NAME)},
                {"%s shards", grouped(WN_LIMIT_SHARDS)},
                {"`tokenizer.model` of %s", sized(WN_LIMIT_TOKENIZER_MODEL)},
                {"`chat_template.jinja` of %s", sized(WN_LIMIT_TEMPLATE)},
                {"`log.jsonl` of %s", sized(WN_LIMIT_LOG)},
                {"corpus of %s values", grouped(WN_LIMIT_LINE_VALUES)},
                {"of %s tokens", grouped(WN_LIMIT_VOCABULARY)},
                {"%s end tokens", grouped(WN_LIMIT_DECLARED)},
                {"tokens of %s", sized(WN_TOKEN_MAX_BYTES)}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char text[200];
    snprintf(text, sizeof text, others[i].format, others[i].value);
    if (!strstr(page, text)) fail_msg("docs/file-formats.md does not say \"%s\"", text);
  }
}

/* The texts that take the most memory for their length: lists, objects, strings. n: the number of values, as the limit
 * counts them. */
static char *worst(int form, size_t n, size_t *bytes) {
  static const struct {
    const char *item;
    size_t values;
  } forms[] = {{"[],", 3}, {"{},", 3}, {"\"\",", 1}, {"1.5,", 1}};
  const size_t length = strlen(forms[form].item), items = (n - 4) / forms[form].values;
  char *text = malloc(items * length + 64);
  assert_non_null(text);
  char *at = text + sprintf(text, "{\"a\":[");
  for (size_t i = 0; i < items; i++, at += length) memcpy(at, forms[form].item, length);
  at += sprintf(at - 1, "]}") - 1;
  *bytes = (size_t)(at - text);
  return text;
}

static void json_at_its_limits(void **state) {
  (void)state;
  for (int k = 0; k < KINDS; k++) {
    for (int form = 0; form < 4; form++) {
      json_t *j = NULL;
      size_t bytes;
      const bool small = kinds[k].values <= 64 * WN_KIB; /* larger ones: below, in a limited process */
      if (small) {
        char *text = worst(form, kinds[k].values, &bytes);
        if (bytes <= kinds[k].bytes) assert_ok(ctx, wn_json_load_text(ctx, kinds[k].kind, "here", text, bytes, &j));
        json_decref(j);
        free(text);
      }
      char *text = worst(form, kinds[k].values + 8, &bytes);
      assert_refused(ctx, wn_json_load_text(ctx, kinds[k].kind, "here", text, bytes, &j), WN_ERR_FORMAT,
                     bytes > kinds[k].bytes ? "bytes long" : "values");
      assert_null(j);
      free(text);
    }
    char *text = calloc(1, kinds[k].bytes + 1);
    json_t *j = NULL;
    assert_refused(ctx, wn_json_load_text(ctx, kinds[k].kind, "here", text, kinds[k].bytes + 1, &j), WN_ERR_FORMAT,
                   kinds[k].name);
    free(text);
  }
  /* Commas and brackets inside strings are not values. */
  json_t *j = NULL;
  char text[40000] = "{\"a\\\"[[\": \"";
  size_t at = strlen(text);
  for (; at < sizeof text - 10; at++) text[at] = ',';
  memcpy(text + at, "\"}", 3);
  assert_ok(ctx, wn_json_load_text(ctx, WN_JSON_LINE, "here", text, strlen(text), &j));
  json_decref(j);
  char small[600] = "{\"a\": \"";
  memset(small + 7, '[', 500);
  memcpy(small + 507, "\"}", 3);
  assert_ok(ctx, wn_json_load_text(ctx, WN_JSON_ENTRY, "here", small, strlen(small), &j));
  json_decref(j);
}

#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 }; /* the sanitizer's shadow memory exceeds any limit */
#else
enum { SANITIZED = 0 };
#endif

/* Runs in a process of its own with `most` bytes of address space. Returns its exit code, 0 for WN_OK. */
static int limited(size_t most, int (*run)(const void *), const void *user) {
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const struct rlimit limit = {most, most};
    _exit(SANITIZED || setrlimit(RLIMIT_AS, &limit) == 0 ? run(user) : 99);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static size_t address_space(void) {
  size_t pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%zu", &pages), 1);
  fclose(f);
  return pages * 4096;
}

struct text {
  enum wn_json_kind kind;
  const char *text;
  size_t bytes;
};
static int parse(const void *user) {
  const struct text *t = user;
  json_t *j = NULL;
  const wn_status status = wn_json_load_text(ctx, t->kind, "here", t->text, t->bytes, &j);
  json_decref(j);
  return (int)status;
}

/* A configuration of 31 MB of lists once took 2.7 GB and was accepted. */
static void lists_are_refused_in_little_memory(void **state) {
  (void)state;
  size_t bytes;
  char *text = worst(0, 31000000, &bytes);
  assert_true(bytes > 30000000);
  for (int k = 0; k < KINDS; k++) {
    const struct text t = {kinds[k].kind, text, bytes};
    assert_int_equal(limited(address_space() + 4 * WN_MIB, parse, &t), WN_ERR_FORMAT);
  }
  free(text);
  /* Texts within the limits take at most 150 bytes a value. */
  for (int k = 0; k < KINDS; k++) {
    if (kinds[k].values > 256 * WN_KIB) continue; /* same code, only slower */
    for (int form = 0; form < 4; form++) {
      text = worst(form, kinds[k].values, &bytes);
      const struct text t = {kinds[k].kind, text, bytes};
      if (bytes <= kinds[k].bytes)
        assert_int_equal(limited(address_space() + 150 * kinds[k].values + 4 * WN_MIB, parse, &t), WN_OK);
      free(text);
    }
  }
}

static int open_header(const void *user) {
  const struct text *t = user;
  wn_safetensors *file = NULL;
  const wn_status status = wn_safetensors_open_memory(ctx, "here", t->text, t->bytes, &file);
  const bool whole = status != WN_OK || wn_safetensors_count(file) > 200000;
  wn_safetensors_close(file);
  return whole ? (int)status : 98;
}

/* A header of 20 MB once took 0.94 GB. It is read entry by entry and takes at most five times its size. */
static void headers_are_read_in_little_memory(void **state) {
  (void)state;
  const size_t room = 21000000;
  char *file = malloc(room);
  assert_non_null(file);
  size_t at = 8, n = 0;
  for (; at < 20000000; n++)
    at += (size_t)sprintf(file + at, "%c\"tensor.%zu\":{\"dtype\":\"U8\",\"shape\":[1,1,1],\"data_offsets\":[%zu,%zu]}",
                          n ? ',' : '{', n, n, n + 1);
  file[at++] = '}';
  const uint64_t header = at - 8;
  memcpy(file, &header, sizeof header);
  assert_true(at + n < room);
  memset(file + at, 0, n);
  const struct text t = {.text = file, .bytes = at + n};
  assert_int_equal(limited(address_space() + 100 * WN_MIB, open_header, &t), WN_OK);
  free(file);
}

static int set_up(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int tear_down(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(page_says_the_same), cmocka_unit_test(json_at_its_limits),
                                     cmocka_unit_test(lists_are_refused_in_little_memory),
                                     cmocka_unit_test(headers_are_read_in_little_memory)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
