/* The input is a SentencePiece model. If it loads, it must encode some texts, decode every id, and stream text. */
#include "fuzz/fuzz.h"

#include "winnow/tokenizer.h"

static const char *const texts[] = {
    "",
    " ",
    "a",
    "the quick  brown fox\njumps\n\n over",
    "gr\xC3\xBC\xC3\x9F \xEF\xAC\x81 \xF0\x9F\x8C\xBE\xE2\x96\x81x\t",
    "<s></s><unk><0x41>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"};

static void stream(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count) {
  wn_text_stream *s = NULL;
  HOLDS(wn_text_stream_create(ctx, tok, &s) == WN_OK);
  for (size_t i = 0; i < count; i++) {
    const char *text;
    size_t bytes;
    HOLDS(wn_text_stream_push(ctx, s, ids[i], &text, &bytes) == WN_OK);
    HOLDS(strlen(text) <= bytes);
  }
  wn_text_stream_destroy(s);
}

/* Protobuf: a field is a tag and, mostly, a length and bytes. */
static size_t read_varint(const uint8_t *data, size_t size, uint64_t *out) {
  *out = 0;
  for (size_t i = 0; i < size && i < 10; i++) {
    *out |= (uint64_t)(data[i] & 0x7F) << (7 * i < 63 ? 7 * i : 63);
    if (!(data[i] & 0x80)) return i + 1;
  }
  return 0;
}

static size_t write_varint(uint8_t *out, uint64_t value) {
  size_t n = 0;
  for (; value >= 0x80; value >>= 7) out[n++] = (uint8_t)(value | 0x80);
  out[n++] = (uint8_t)value;
  return n;
}

/* Picks one of a message's length-delimited fields by the seed. Returns false if there is none. */
static bool pick_field(const uint8_t *data, size_t size, unsigned seed, size_t *tag_end, size_t *body, size_t *bytes) {
  size_t found = 0;
  for (int pass = 0; pass < 2; pass++) {
    size_t at = 0, seen = 0;
    while (at < size) {
      uint64_t tag, length;
      size_t n = read_varint(data + at, size - at, &tag), m;
      if (!n) break;
      at += n;
      if ((tag & 7) == 0) {
        if (!(m = read_varint(data + at, size - at, &length))) break;
        at += m;
      } else if ((tag & 7) == 5 || (tag & 7) == 1) {
        size_t width = (tag & 7) == 5 ? 4 : 8;
        if (size - at < width) break;
        at += width;
      } else if ((tag & 7) == 2) {
        if (!(m = read_varint(data + at, size - at, &length)) || length > size - at - m) break;
        if (pass == 1 && seen == seed % found) {
          *tag_end = at;
          *body = at + m;
          *bytes = (size_t)length;
          return true;
        }
        seen++;
        at += m + (size_t)length;
      } else {
        break;
      }
    }
    found = seen;
    if (!found) return false;
  }
  return false;
}

/* Mutates the inside of one field, `depth` messages down, and corrects the lengths around it. */
static size_t mutate_message(uint8_t *data, size_t size, size_t max_size, unsigned seed, int depth) {
  size_t tag_end, body, bytes;
  if (depth == 0 || max_size < size + 16 || !pick_field(data, size, seed, &tag_end, &body, &bytes))
    return LLVMFuzzerMutate(data, size, max_size);
  size_t room = bytes + (max_size - size) - 10, tail = size - body - bytes;
  uint8_t *inner = malloc(room), *kept = malloc(tail + 1);
  HOLDS(inner && kept);
  memcpy(inner, data + body, bytes);
  memcpy(kept, data + body + bytes, tail);
  bytes = mutate_message(inner, bytes, room, seed / 7919 + 1, depth - 1);
  body = tag_end + write_varint(data + tag_end, bytes);
  memcpy(data + body, inner, bytes);
  memcpy(data + body + bytes, kept, tail);
  free(inner);
  free(kept);
  return body + bytes + tail;
}

/* Among hundreds of pieces, fields 2 (trainer) and 3 (normaliser) would rarely be picked, so half of the time one of
 * the file's last fields is taken. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  size_t at = 0;
  if (seed & 1) { /* skip the pieces */
    while (at < size && data[at] == 0x0A) {
      uint64_t length;
      size_t m = read_varint(data + at + 1, size - at - 1, &length);
      if (!m || length > size - at - 1 - m) break;
      at += 1 + m + (size_t)length;
    }
    if (at >= size) at = 0;
  }
  return at + mutate_message(data + at, size - at, max_size - at, seed >> 3, (int)(seed >> 1 & 3));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  wn_tokenizer *tok = NULL;
  if (wn_tokenizer_load(ctx, fuzz_file(data, size), &tok) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!tok);
    return 0;
  }
  int32_t vocab = wn_tokenizer_vocab_size(tok);
  HOLDS(vocab > 0 && wn_tokenizer_bos(tok) < vocab && wn_tokenizer_eos(tok) < vocab);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    int32_t *ids = NULL;
    size_t count = 0, bytes = 0;
    char *text = NULL;
    if (wn_tokenizer_encode(ctx, tok, texts[i], strlen(texts[i]), i & 1, i & 2, &ids, &count) != WN_OK) {
      fuzz_refused(ctx);
      continue;
    }
    for (size_t k = 0; k < count; k++) HOLDS(ids[k] >= 0 && ids[k] < vocab);
    HOLDS(wn_tokenizer_decode(ctx, tok, ids, count, &text, &bytes) == WN_OK);
    wn_text_free(text);
    stream(ctx, tok, ids, count);
    wn_tokens_free(ids);
  }
  int32_t bad[] = {vocab, -1};
  for (int i = 0; i < 2; i++) {
    char *text = NULL;
    size_t bytes = 0;
    HOLDS(wn_tokenizer_decode(ctx, tok, &bad[i], 1, &text, &bytes) == WN_ERR_ARGUMENT);
  }
  for (int32_t id = 0; id < vocab; id++) {
    char *text = NULL;
    size_t bytes = 0;
    HOLDS(wn_tokenizer_decode(ctx, tok, &id, 1, &text, &bytes) == WN_OK);
    wn_text_free(text);
  }
  wn_tokenizer_destroy(tok);
  return 0;
}
