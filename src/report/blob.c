/* Binary data inside text: zlib, base64, and PNG images (ISO/IEC 15948) with a palette. */
#include <string.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "report/figure.h"

static void blob_add_base64(struct wn_text *out, const uint8_t *data, size_t bytes) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char line[4 * 1024 + 1];
  size_t n = 0;
  for (size_t i = 0; i < bytes; i += 3) {
    const size_t left = bytes - i;
    const uint32_t v =
        (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) | (left > 2 ? (uint32_t)data[i + 2] : 0);
    line[n++] = digits[v >> 18];
    line[n++] = digits[v >> 12 & 63];
    line[n++] = left > 1 ? digits[v >> 6 & 63] : '=';
    line[n++] = left > 2 ? digits[v & 63] : '=';
    if (n == sizeof line - 1 || i + 3 >= bytes) {
      line[n] = 0;
      wn_text_add(out, "%s", line);
      n = 0;
    }
  }
}

static wn_status blob_pack(wn_context *ctx, const void *data, size_t bytes, uint8_t **out, size_t *packed) {
  uLongf room = compressBound((uLong)bytes);
  WN_TRY(WN_ALLOC(ctx, "compressed tile", room + 1, out));
  if (compress2(*out, &room, data, (uLong)bytes, 6) != Z_OK) {
    wn_free(*out);
    return wn_fail(ctx, WN_ERR_MEMORY, "zlib cannot compress %zu bytes", bytes);
  }
  *packed = room;
  return WN_OK;
}

wn_status wn_blob_add(wn_context *ctx, struct wn_text *out, const void *data, size_t bytes) {
  uint8_t *packed = NULL;
  size_t n = 0;
  WN_TRY(blob_pack(ctx, data, bytes, &packed, &n));
  blob_add_base64(out, packed, n);
  wn_free(packed);
  return out->failed ? wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a page's tiles") : WN_OK;
}

static size_t blob_put_u32(uint8_t *at, uint32_t v) {
  at[0] = (uint8_t)(v >> 24), at[1] = (uint8_t)(v >> 16), at[2] = (uint8_t)(v >> 8), at[3] = (uint8_t)v;
  return 4;
}

/* A PNG chunk: length, type, data, checksum of type and data. */
static size_t blob_put_chunk(uint8_t *at, const char *type, const void *data, size_t bytes) {
  size_t n = blob_put_u32(at, (uint32_t)bytes);
  memcpy(at + n, type, 4);
  if (bytes) memcpy(at + n + 4, data, bytes);
  n += 4 + bytes;
  return n + blob_put_u32(at + n, (uint32_t)crc32(crc32(0, NULL, 0), at + 4, (uInt)(bytes + 4)));
}

wn_status wn_png_add(wn_context *ctx, struct wn_text *out, const uint8_t *pixels, int64_t w, int64_t h,
                     const uint8_t palette[768]) {
  const size_t row = (size_t)w + 1;
  uint8_t *image, *png, *packed = NULL;
  size_t n = 0, at = 0;
  WN_TRY(WN_ALLOC(ctx, "image", row * (size_t)h, &image)); /* each row begins with a byte for its filter: none */
  for (int64_t y = 0; y < h; y++) memcpy(image + (size_t)y * row + 1, pixels + y * w, (size_t)w);
  wn_status status = blob_pack(ctx, image, row * (size_t)h, &packed, &n);
  wn_free(image);
  if (status != WN_OK) return status;
  status = WN_ALLOC(ctx, "image", n + 1024, &png);
  if (status == WN_OK) {
    static const uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    uint8_t head[13];
    memcpy(png, signature, sizeof signature);
    at = sizeof signature;
    blob_put_u32(head, (uint32_t)w);
    blob_put_u32(head + 4, (uint32_t)h);
    memcpy(head + 8, "\x08\x03\0\0", 5); /* 8 bits, palette, deflate, filters by row, not interlaced */
    at += blob_put_chunk(png + at, "IHDR", head, sizeof head);
    at += blob_put_chunk(png + at, "PLTE", palette, 768);
    at += blob_put_chunk(png + at, "IDAT", packed, n);
    at += blob_put_chunk(png + at, "IEND", NULL, 0);
    wn_text_add(out, "data:image/png;base64,");
    blob_add_base64(out, png, at);
    wn_free(png);
    if (out->failed) status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: an image");
  }
  wn_free(packed);
  return status;
}
