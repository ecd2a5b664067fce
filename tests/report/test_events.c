/* Event files equal those of TensorBoard's own writer byte for byte (tools/make-events-golden.py). */
#include "support.h"

#include "winnow/report.h"

static void read_all(const char *path, unsigned char *out, size_t room, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is not there", path);
  *bytes = fread(out, 1, room, f);
  fclose(f);
}

static void test_golden(void **state) {
  (void)state;
  static const char longest[] =
      "a tag that is longer than one hundred and twenty-seven bytes, so that its length and that of "
      "its message take two bytes as a varint, each of them";
  wn_context *ctx = make_context();
  char folder[512];
  make_folder(folder);
  wn_events *e;
  assert_ok(ctx, wn_events_open(ctx, folder, 1700000000.25, 301, &e));
  const wn_event_value first[] = {{"loss/train", 4.25}, {"learning_rate", 2e-5}};
  const wn_event_value second[] = {{"loss/train", 0}, {longest, -1.5e-30}};
  assert_ok(ctx, wn_events_add(ctx, e, 1700000001.5, 301, first, 2));
  assert_ok(ctx, wn_events_add(ctx, e, 1700000001.5, 70000, second, 2));
  unsigned char have[4096], want[4096];
  size_t n, m;
  read_all(wn_events_path(e), have, sizeof have, &n);
  read_all(WN_TEST_DIR "/golden/events.tfevents", want, sizeof want, &m);
  assert_int_equal(n, m);
  assert_memory_equal(have, want, n);
  assert_non_null(strstr(wn_events_path(e), "/events.out.tfevents.1700000000."));
  /* A second writer does not overwrite the first one's file. */
  wn_events *other;
  assert_ok(ctx, wn_events_open(ctx, folder, 1700000000.25, 0, &other));
  assert_string_not_equal(wn_events_path(e), wn_events_path(other));
  /* What does not fit is refused, and nothing is written. */
  char tag[5000];
  memset(tag, 'x', sizeof tag - 1);
  tag[sizeof tag - 1] = 0;
  const wn_event_value large = {tag, 1};
  read_all(wn_events_path(other), have, sizeof have, &n);
  assert_refused(ctx, wn_events_add(ctx, other, 1, 1, &large, 1), WN_ERR_ARGUMENT, "an event of more than");
  read_all(wn_events_path(other), have, sizeof have, &m);
  assert_int_equal(n, m);
  wn_events_close(e);
  wn_events_close(other);
  assert_refused(ctx, wn_events_open(ctx, "/dev/null/x", 1, 0, &e), WN_ERR_IO, "/dev/null");
  remove_folder(folder);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
