/* The memory regions of a call's arrays (regions.h), found with the table of its fields (derive.h). */
#include "attention/regions.h"

#include <string.h>

#include "base/text.h"

/* The field's array and its size in bytes; 0: none. */
static size_t regions_array(const struct wn_attention *op, const struct wn_call_field *field, wn_dtype dtype,
                            enum wn_call_scope most, char **at) {
  *at = NULL;
  if (field->scope > most || field->element == WN_CALL_NUMBER || field->element == WN_CALL_OTHER) return 0;
  memcpy(at, (const char *)op + field->at, sizeof *at);
  return *at ? wn_call_bytes(op, field->element, dtype, wn_call_field_span(op, field)) : 0;
}

static size_t regions_aligned(size_t bytes) {
  return (bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

size_t wn_call_regions_most(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most) {
  size_t all = 0;
  char *at;
  for (int i = 0; i < wn_call_field_count(); i++)
    all += regions_aligned(regions_array(op, wn_call_field_at(i), dtype, most, &at));
  return all;
}

/* Does the operation write to the field's array? */
static bool regions_writes(const struct wn_call_field *field) {
  static const char *const others[] = {"y", "slots.sums", "sel.f_out", NULL};
  static const char *const read[] = {"dy", "look.tau", "look.control", NULL};
  return wn_listed(others, field->name) || (field->scope == WN_CALL_TRAINING && !wn_listed(read, field->name));
}

/* Adds an array; regions that share bytes with it become one. */
static void regions_add(struct wn_call_regions *r, char *at, size_t bytes, bool written) {
  char *end = at + bytes;
  for (int i = 0; i < r->n;) {
    struct wn_call_region *one = &r->region[i];
    if (one->at >= end || one->at + one->bytes <= at) {
      i++;
      continue;
    }
    written = written || one->written;
    if (one->at < at) at = one->at;
    if (one->at + one->bytes > end) end = one->at + one->bytes;
    *one = r->region[--r->n];
    i = 0;
  }
  r->region[r->n++] = (struct wn_call_region){.at = at, .bytes = (size_t)(end - at), .written = written};
}

void wn_call_regions_find(const struct wn_attention *op, wn_dtype dtype, enum wn_call_scope most,
                          struct wn_call_regions *out) {
  *out = (struct wn_call_regions){0};
  for (int i = 0; i < wn_call_field_count(); i++) {
    char *at;
    const size_t bytes = regions_array(op, wn_call_field_at(i), dtype, most, &at);
    if (bytes > 0) regions_add(out, at, bytes, regions_writes(wn_call_field_at(i)));
  }
  for (int i = 0; i < out->n; i++) out->bytes += regions_aligned(out->region[i].bytes);
}

void wn_call_regions_place(struct wn_call_regions *r, void *memory) {
  char *at = memory;
  for (int i = 0; i < r->n; i++) {
    r->region[i].there = at;
    at += regions_aligned(r->region[i].bytes);
  }
}

void *wn_call_regions_there(const struct wn_call_regions *r, void *at) {
  for (int k = 0; k < r->n; k++) {
    const struct wn_call_region *one = &r->region[k];
    if ((char *)at >= one->at && (char *)at < one->at + one->bytes) return one->there + ((char *)at - one->at);
  }
  return at;
}

struct wn_attention wn_call_regions_call(const struct wn_call_regions *r, const struct wn_attention *op,
                                         enum wn_call_scope most) {
  struct wn_attention a = *op;
  for (int i = 0; i < wn_call_field_count(); i++) {
    const struct wn_call_field *field = wn_call_field_at(i);
    char *at;
    if (regions_array(op, field, WN_F32, most, &at) == 0) continue;
    void *there = wn_call_regions_there(r, at);
    memcpy((char *)&a + field->at, &there, sizeof there);
  }
  return a;
}

wn_status wn_call_regions_read(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *r) {
  for (int i = 0; i < r->n; i++) WN_TRY(memory->copy_out(ctx, r->region[i].there, r->region[i].at, r->region[i].bytes));
  return memory->wait(ctx, memory->record(ctx));
}

wn_status wn_call_regions_show(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *r) {
  for (int i = 0; i < r->n; i++) WN_TRY(memory->copy_in(ctx, r->region[i].there, r->region[i].at, r->region[i].bytes));
  return WN_OK;
}

wn_status wn_call_regions_take(wn_context *ctx, const struct wn_memory *memory, const struct wn_call_regions *r) {
  for (int i = 0; i < r->n; i++)
    if (r->region[i].written) WN_TRY(memory->copy_out(ctx, r->region[i].at, r->region[i].there, r->region[i].bytes));
  return memory->wait(ctx, memory->record(ctx));
}
