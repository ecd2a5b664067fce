/* Checksums of files: XXH3, 64 bits (Yann Collet, https://xxhash.com, BSD), of the header and of every tensor. A
 * safetensors or GGUF file stores them as one text under the metadata key WN_CHECKSUM_KEY, which other programs ignore:
 *   "xxh3 HHHHHHHHHHHHHHHH TTTTTTTTTTTTTTTT ..."     lowercase hexadecimal digits
 * H covers the file from its first byte to the first tensor, with H itself read as zeros ("0000000000000000"). Then
 * comes one checksum per tensor, in the order of the tensors in the file. So any single wrong bit is noticed. Cost: one
 * pass over memory (docs/file-formats.md has the measured speed). Checksums find decay, not forgery. */
#ifndef WN_IO_CHECKSUM_H
#define WN_IO_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/gguf.h"
#include "winnow/safetensors.h"

#define WN_CHECKSUM_KEY "winnow.checksums"

uint64_t wn_checksum(const void *data, size_t bytes);

/* The same for bytes that arrive in pieces. */
struct wn_checksum_stream {
  _Alignas(64) unsigned char state[640];
};
void wn_checksum_begin(struct wn_checksum_stream *s);
void wn_checksum_add(struct wn_checksum_stream *s, const void *data, size_t bytes);
uint64_t wn_checksum_end(const struct wn_checksum_stream *s);

/* The text of `count` checksums, the header's included: its length; the text with every checksum 0; writing checksum
 * i. */
size_t wn_checksum_text_bytes(int count);
void wn_checksum_text_blank(char *text, int count); /* text [bytes + 1] */
void wn_checksum_text_put(char *text, int i, uint64_t sum);
/* Is the text meant to be checksums? Otherwise a damaged key would make the file pass as one without checksums. */
bool wn_checksum_text_is(const char *text, size_t bytes);
/* The checksum of a header whose text of checksums begins at byte `at`. */
uint64_t wn_checksum_header(const void *header, size_t bytes, size_t at);

/* A file's header and the text of its checksums. */
struct wn_checksums {
  const char *file; /* its name */
  const uint8_t *header;
  const char *text; /* may be a copy */
  size_t header_bytes, text_bytes;
  size_t at; /* where the text begins in the header; 0: it was not found there */
  int count; /* tensors */
};
/* A tensor's bytes in the file. */
struct wn_checksum_part {
  const char *name; /* borrowed */
  const uint8_t *data;
  size_t bytes;
  uint64_t sum; /* the expected one: set by wn_checksum_check */
};
/* Puts parts in their order in the file. */
void wn_checksum_sort(struct wn_checksum_part *parts, int count);
/* Compares a header, and parts [count] in their order unless NULL, with their checksums. WN_ERR_FORMAT names the file,
 * the first tensor that differs and how many differ. Runs on the context's threads. */
wn_status wn_checksum_check(wn_context *ctx, const struct wn_checksums *c, struct wn_checksum_part *parts);
/* WN_ERR_FORMAT: the header is damaged. */
wn_status wn_checksum_damaged(wn_context *ctx, const char *file, const char *what);

/* Compares a file's checksums with its contents; `data`: of the tensors too, not only of the header. *has (may be
 * NULL): whether the file has checksums; without any it passes. */
wn_status wn_safetensors_check(wn_context *ctx, const wn_safetensors *file, bool data, bool *has);
wn_status wn_gguf_check(wn_context *ctx, const wn_gguf *file, bool data, bool *has);

#endif
