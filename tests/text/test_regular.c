/* Regular expressions of schemas: random ones against PCRE2, over all short strings; formats by hand; what is too much.
 */
#include "text/regular.h"

#include "base/alloc.h"
#include "text/constraint.h"
#include "text/validator.h"

static wn_context *ctx;
static uint64_t seed = 88172645463325252u;
static uint32_t any(uint32_t below) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (uint32_t)((seed >> 20) % below);
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

/* Appends a random expression. */
static void any_pattern(char *out, int depth) {
  static const char *const atoms[] = {"a",   "b",      "é",   "[ab]",     "[^a]", ".", "\\w", "\\W",
                                      "\\d", "[\\wé]", "\\n", "[^\\n-b]", "^",    "$", "(?:)"};
  static const char *const counts[] = {"*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?", "{0}", "{,2}", "}"};
  for (uint32_t n = any(4); n > 0 && strlen(out) < 120; n--) {
    bool anchor = false;
    if (depth > 0 && any(3) == 0) {
      snprintf(out + strlen(out), 20, any(2) ? "(" : any(2) ? "(?:" : "(?<n%zu>", strlen(out));
      any_pattern(out, 0);
      strcat(out, ")");
    } else {
      const uint32_t i = any(any(3) ? 12 : 15);
      anchor = i >= 12;
      strcat(out, atoms[i]);
    }
    if (any(2) && !anchor) strcat(out, counts[any(11)]);
    if (any(5) == 0) strcat(out, "|");
  }
}

static struct wn_regular *regular_of(const char *const *patterns, int count, int64_t min, int64_t max) {
  struct wn_regular *r;
  uint64_t steps = UINT64_C(1) << 26;
  if (wn_regular_create(ctx, patterns, count, min, max, &steps, &r) != WN_OK)
    fail_msg("%s: %s", patterns[0], wn_context_error(ctx));
  return r;
}

static const struct letter {
  const char *text;
  uint32_t character;
} letters[] = {{"a", 'a'}, {"b", 'b'}, {"é", 0xE9}, {"\n", '\n'}, {"0", '0'}, {"😀", 0x1F600}};
enum { LETTERS = sizeof letters / sizeof *letters };

/* Compares all strings that begin with `text`. A dead state has no end behind it, any other has one somewhere. */
static void compare(const struct wn_regular *r, const char *const *patterns, int count, int64_t min, int64_t max,
                    uint32_t state, char *text, int length, int most) {
  bool wanted = length >= min && length <= max;
  for (int i = 0; i < count; i++) wanted = wanted && matches(patterns[i], text);
  if (r->ends[state] != wanted) {
    char shown[300] = "";
    for (int i = 0; i < count; i++) strcat(strcat(shown, patterns[i]), "   ");
    fail_msg("%s (%lld to %lld): \"%s\" should %sbe taken", shown, (long long)min, (long long)max, text,
             wanted ? "" : "not ");
  }
  for (int i = 0; i < LETTERS && length < most; i++) {
    const size_t bytes = strlen(text);
    strcat(text, letters[i].text);
    compare(r, patterns, count, min, max, wn_regular_next(r, state, letters[i].character), text, length + 1, most);
    text[bytes] = 0;
  }
}

static void test_random(void **state) {
  (void)state;
  for (int i = 0; i < 500; i++) {
    char one[200] = "", two[200] = "", text[64] = "";
    any_pattern(one, 1);
    any_pattern(two, 1);
    const char *const patterns[] = {one, two};
    const int count = 1 + (any(4) == 0);
    const int64_t min = any(3) ? 0 : any(3), max = any(3) ? INT64_MAX : min + any(3);
    struct wn_regular *r = regular_of(patterns, count, min, max);
    compare(r, patterns, count, min, max, WN_REGULAR_START, text, 0, count > 1 ? 2 : 3);
    wn_free(r);
  }
}

/* From each state an end is reached. */
static void test_completes(void **state) {
  (void)state;
  for (int i = 0; i < 300; i++) {
    char one[200] = "";
    any_pattern(one, 1);
    const char *const pattern = one;
    struct wn_regular *r = regular_of(&pattern, 1, any(2) ? 0 : any(9), INT64_MAX);
    bool *good = test_calloc(r->states, 1), again = true;
    memcpy(good, r->ends, r->states);
    for (; again;) {
      again = false;
      for (uint32_t s = 1; s < r->states; s++)
        for (uint32_t c = 0; c < r->classes; c++)
          if (!good[s] && good[r->next[s * r->classes + c]]) good[s] = again = true;
    }
    assert_int_equal(good[WN_REGULAR_START], r->goes);
    for (uint32_t s = 0; s < r->states; s++)
      for (uint32_t c = 0; c < r->classes; c++)
        if (r->next[s * r->classes + c]) assert_true(good[r->next[s * r->classes + c]]);
    test_free(good);
    wn_free(r);
  }
}

/* Is a text taken under a schema, byte by byte? */
static bool taken(const char *format, const char *text) {
  wn_tokenizer *tok;
  wn_constraint *c;
  char schema[80];
  const int n = snprintf(schema, sizeof schema, "{\"format\": \"%s\"}", format);
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  if (wn_constraint_create_json(ctx, tok, schema, (size_t)n, &c) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  bool good = wn_constraint_accept(ctx, c, '"') == WN_OK;
  for (; *text && good; text++) good = wn_constraint_accept(ctx, c, (unsigned char)*text) == WN_OK;
  good = good && wn_constraint_accept(ctx, c, '"') == WN_OK;
  wn_constraint_destroy(c);
  wn_tokenizer_destroy(tok);
  return good;
}

static void test_formats(void **state) {
  (void)state;
  static const struct {
    const char *format, *text;
    bool good;
  } rows[] = {
      {"date", "2024-02-29", true},
      {"date", "2023-02-29", false},
      {"date", "1900-02-29", false},
      {"date", "2000-02-29", true},
      {"date", "0000-01-01", false},
      {"date", "0004-02-29", true},
      {"date", "2024-04-31", false},
      {"date", "2024-12-31", true},
      {"date", "2024-13-01", false},
      {"date", "2024-1-01", false},
      {"time", "23:59:59Z", true},
      {"time", "23:59:59.123+01:00", true},
      {"time", "23:59:59", false},
      {"time", "24:00:00Z", false},
      {"time", "10:60:00Z", false},
      {"date-time", "2024-02-29T00:00:00-23:59", true},
      {"date-time", "2024-02-30T00:00:00Z", false},
      {"date-time", "2024-02-29 00:00:00Z", false},
      {"uuid", "12345678-9abc-def0-1234-56789ABCDEF0", true},
      {"uuid", "12345678-9abc-def0-1234-56789ABCDEF", false},
      {"uuid", "g2345678-9abc-def0-1234-56789ABCDEF0", false},
      {"email", "a.b+c@example.org", true},
      {"email", "a@b", false},
      {"email", ".a@b.de", false},
      {"email", "a..b@c.de", false},
      {"email", "a@-b.de", false},
      {"email", "a@b-c.de", true},
      {"email", "a b@c.de", false},
      {"ipv4", "255.0.19.1", true},
      {"ipv4", "256.0.0.1", false},
      {"ipv4", "01.0.0.1", false},
      {"ipv4", "1.2.3", false},
      {"hostname", "a-b.example", true},
      {"hostname", "-a", false},
      {"hostname", "a-", false},
      {"hostname", "a..b", false},
      {"uri", "https://user:pw@example.org:80/a/b?q=1&r=%20#f", true},
      {"uri", "mailto:a@b.de", true},
      {"uri", "urn:isbn:1", true},
      {"uri", "file:///etc/x", true},
      {"uri", "//example.org", false},
      {"uri", "a b:c", false},
      {"uri", "http://a/%2", false},
      {"uri", "http://a/\"", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (taken(rows[i].format, rows[i].text) != rows[i].good)
      fail_msg("%s: %s should %sbe taken", rows[i].format, rows[i].text, rows[i].good ? "" : "not ");
}

/* What takes long is refused, and soon: in steps, not in seconds. */
static void test_bounds(void **state) {
  (void)state;
  static const char *const rows[] = {"^[ab]*a[ab]{20}$",
                                     "((((((((((a*)*)*)*)*)*)*)*)*)*)*)*$",
                                     "(.{1,99}){1,99}",
                                     "((a{1,50}){1,50}){1,50}",
                                     "(a|b|c|d|.){0,4000}[^a]{4000}",
                                     "(((((((((((((((((((((((((((((((((a)))))))))))))))))))))))))))))))))"};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct wn_regular *r = NULL;
    uint64_t steps = UINT64_C(1) << 26;
    const wn_status status = wn_regular_create(ctx, &rows[i], 1, 0, INT64_MAX, &steps, &r);
    assert_true(status == WN_OK || status == WN_ERR_UNSUPPORTED || status == WN_ERR_FORMAT);
    assert_true(status == WN_OK || !r);
    wn_free(r);
  }
  struct wn_regular *r;
  uint64_t few = 100;
  assert_refused(ctx, wn_regular_create(ctx, rows, 1, 0, INT64_MAX, &few, &r), WN_ERR_UNSUPPORTED, "steps");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_completes),
                                     cmocka_unit_test(test_formats), cmocka_unit_test(test_bounds)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
