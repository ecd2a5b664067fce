/* Event files that TensorBoard reads: TFRecords of Event messages.
 *
 *   record   length, 8 bytes little-endian; masked crc of these; data; masked crc of the data
 *   crc      CRC-32C (Castagnoli, reflected 0x82f63b78), masked: rotated right by 15, plus 0xa282ead8
 *   Event    1 wall_time double, 2 step int64, 3 file_version string | 5 Summary | 7 SessionLog
 *   Summary  1 Value, each: 1 tag string, 2 simple_value float
 *
 * Each process writes a file of its own, as TensorFlow does. A file that continues a run begins with SessionLog START
 * at its first step; TensorBoard then drops later steps of earlier files. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/open.h"
#include "winnow/report.h"

enum { ROOM = 4096, NAME = 200 };

struct wn_events {
  int fd;
  char path[4096 + 256];
  uint32_t table[256];
};

struct bytes {
  uint8_t data[ROOM];
  size_t count;
  bool full;
};

static void events_put(struct bytes *b, const void *data, size_t n) {
  if (n > ROOM - b->count) {
    b->full = true;
    return;
  }
  memcpy(b->data + b->count, data, n);
  b->count += n;
}

static void events_put_varint(struct bytes *b, uint64_t v) {
  do {
    const uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
    events_put(b, &byte, 1);
    v >>= 7;
  } while (v);
}

static void events_put_little(struct bytes *b, uint64_t v, int n) {
  for (int i = 0; i < n; i++) events_put(b, &(uint8_t){(uint8_t)(v >> (8 * i))}, 1);
}

static void events_put_double(struct bytes *b, int field, double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  events_put_varint(b, (uint64_t)field << 3 | 1);
  events_put_little(b, bits, 8);
}

static void events_put_message(struct bytes *b, int field, const void *data, size_t n) {
  events_put_varint(b, (uint64_t)field << 3 | 2);
  events_put_varint(b, n);
  events_put(b, data, n);
}

static uint32_t events_masked_sum(const struct wn_events *e, const uint8_t *data, size_t n) {
  uint32_t crc = ~(uint32_t)0;
  for (size_t i = 0; i < n; i++) crc = e->table[(crc ^ data[i]) & 255] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static wn_status events_append(wn_context *ctx, wn_events *e, const struct bytes *event) {
  struct bytes r = {.count = 0};
  if (!event->full && event->count + 16 <= ROOM) {
    events_put_little(&r, event->count, 8);
    events_put_little(&r, events_masked_sum(e, r.data, 8), 4);
    events_put(&r, event->data, event->count);
    events_put_little(&r, events_masked_sum(e, event->data, event->count), 4);
  }
  if (r.count == 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: an event of more than %d bytes", e->path, ROOM - 16);
  const ssize_t done = write(e->fd, r.data, r.count);
  if (done == (ssize_t)r.count) return WN_OK;
  return wn_fail(ctx, WN_ERR_IO, "%s: cannot write: %s", e->path, strerror(done < 0 ? errno : ENOSPC));
}

static struct bytes events_record(double wall_time, int64_t step) {
  struct bytes b = {.count = 0};
  events_put_double(&b, 1, wall_time);
  if (step != 0) { /* protobuf leaves out fields that are 0 */
    events_put_varint(&b, 2 << 3);
    events_put_varint(&b, (uint64_t)step);
  }
  return b;
}

wn_status wn_events_open(wn_context *ctx, const char *dir, double wall_time, int64_t resumed_from, wn_events **out) {
  WN_CHECK_CALL(WN_POINTER(dir), WN_POINTER(out));
  *out = NULL;
  WN_TRY(wn_make_dirs(ctx, dir));
  wn_events *e;
  WN_TRY(WN_ALLOC(ctx, "event file", 1, &e));
  wn_handle_mark(e, WN_HANDLE_EVENTS);
  e->fd = -1;
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
    e->table[i] = c;
  }
  char host[NAME] = "localhost", name[NAME + 64];
  if (gethostname(host, sizeof host - 1) != 0 || !host[0] || strchr(host, '/')) memcpy(host, "localhost", 10);
  wn_status status = WN_OK;
  for (int n = 0; n < 1000 && status == WN_OK && e->fd < 0; n++) {
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d", (long long)wall_time, host, n);
    status = wn_path_join(ctx, e->path, sizeof e->path, dir, name);
    if (status == WN_OK) e->fd = wn_open_new(e->path);
    if (status == WN_OK && e->fd < 0 && errno != EEXIST) break;
  }
  if (status == WN_OK && e->fd < 0) status = wn_fail(ctx, WN_ERR_IO, "cannot write %s: %s", e->path, strerror(errno));
  if (status == WN_OK) {
    struct bytes b = events_record(wall_time, 0);
    events_put_message(&b, 3, "brain.Event:2", 13);
    status = events_append(ctx, e, &b);
  }
  if (status == WN_OK && resumed_from > 0) {
    struct bytes b = events_record(wall_time, resumed_from);
    events_put_message(&b, 7, "\x08\x01", 2); /* status: START */
    status = events_append(ctx, e, &b);
  }
  if (status == WN_OK)
    *out = e;
  else
    wn_events_close(e);
  return status;
}

wn_status wn_events_add(wn_context *ctx, wn_events *e, double wall_time, int64_t step, const wn_event_value *values,
                        int count) {
  WN_CHECK_CALL(WN_HANDLE_AS("events", e, EVENTS), WN_ARRAY(values, count));
  for (int i = 0; i < count; i++) WN_CHECK_CALL(WN_POINTER(values[i].tag));
  struct bytes b = events_record(wall_time, step), summary = {.count = 0};
  for (int i = 0; i < count; i++) {
    struct bytes value = {.count = 0};
    const float v = (float)values[i].value;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    events_put_message(&value, 1, values[i].tag, strlen(values[i].tag));
    events_put_varint(&value, 2 << 3 | 5);
    events_put_little(&value, bits, 4);
    events_put_message(&summary, 1, value.data, value.count);
    summary.full |= value.full;
  }
  events_put_message(&b, 5, summary.data, summary.count);
  b.full |= summary.full;
  return events_append(ctx, e, &b);
}

const char *wn_events_path(const wn_events *e) {
  WN_CHECK_OR(NULL, WN_HANDLE(e, EVENTS));
  return e->path;
}

void wn_events_close(wn_events *e) {
  WN_CHECK_OR(, WN_HANDLE(e, EVENTS));
  if (e->fd >= 0) close(e->fd);
  wn_free(e);
}
