/* Checksums of files: XXH3, 64 bits (Yann Collet, https://xxhash.com, BSD), of the header and of every tensor. In a
 * safetensors or GGUF file they are one text under the metadata key WN_CHECKSUM_KEY, which other programs pass over:
 *   "xxh3 HHHHHHHHHHHHHHHH TTTTTTTTTTTTTTTT ..."     lowercase hexadecimal digits
 * H of the file from its first byte to the first tensor, with H itself read as zeros ("0000000000000000"); then one of
 * every tensor in the order of their places in the file. So one wrong bit anywhere is noticed. Cost: a pass over memory
 * (docs/file-formats.md has the measured speed). They guard against decay and not against forgery. */
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

/* The same of bytes that come one after the other. */
struct wn_checksum_stream {
  _Alignas(64) unsigned char state[640];
};
void wn_checksum_begin(struct wn_checksum_stream *s);
void wn_checksum_add(struct wn_checksum_stream *s, const void *data, size_t bytes);
uint64_t wn_checksum_end(const struct wn_checksum_stream *s);

/* The text of `count` sums, the header's among them: its length; with every sum 0; sum i in it; all of them out of it,
 * false where it is not such a text to the byte. */
size_t wn_checksum_text_bytes(int count);
void wn_checksum_text_blank(char *text, int count); /* text [bytes + 1] */
void wn_checksum_text_put(char *text, int i, uint64_t sum);
bool wn_checksum_text_get(const char *text, size_t bytes, int count, uint64_t *sums /* [count] */);
/* Whether a text is meant to be one: a damaged key must not make a file one without checksums. */
bool wn_checksum_text_is(const char *text, size_t bytes);
/* Of a header in which the text stands at byte `at`. */
uint64_t wn_checksum_header(const void *header, size_t bytes, size_t at);

/* A piece of a file and the sum that it should have. */
struct wn_checksum_part {
  const char *name; /* of the tensor, borrowed */
  const void *data;
  size_t bytes;
  uint64_t sum;
};
/* WN_ERR_FORMAT names the file, the first part that differs and how many do. Runs on the context's threads. */
wn_status wn_checksum_compare(wn_context *ctx, const char *file, const struct wn_checksum_part *parts, int count);

/* A file's checksums against its content; `data`: the tensors as well, not the header alone. *has (may be NULL):
 * whether the file has any; one without passes. */
wn_status wn_safetensors_check(wn_context *ctx, const wn_safetensors *file, bool data, bool *has);
wn_status wn_gguf_check(wn_context *ctx, const wn_gguf *file, bool data, bool *has);

#endif
