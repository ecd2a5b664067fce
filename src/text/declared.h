/* What a model's files declare about generating (winnow/declared.h): reading and writing it. {0}: nothing. */
#ifndef WN_TEXT_DECLARED_H
#define WN_TEXT_DECLARED_H

#include "winnow/declared.h"
#include "winnow/gguf.h"

#define WN_DECLARED_FILE "generation_config.json"

/* Reads a folder's files; nothing is declared where they are missing. To be cleared also after a failure. */
wn_status wn_declared_read(wn_context *ctx, const char *dir, wn_declared *out);
/* The same of a GGUF file's metadata; where: the file's name. */
wn_status wn_declared_read_gguf(wn_context *ctx, const char *where, const wn_gguf *file, wn_declared *out);
/* Drops ids that are not below `entries`, the vocabulary's size. */
void wn_declared_limit(wn_declared *d, int64_t entries);
void wn_declared_clear(wn_declared *d);
bool wn_declared_is_end(const wn_declared *d, int32_t id);
bool wn_declared_any(const wn_declared *d);
/* The temperature that is declared: 0 where sampling is off. False: none is. */
bool wn_declared_temperature(const wn_declared *d, double *out);
/* Writes a generation_config.json; bos -1: none. */
wn_status wn_declared_write(wn_context *ctx, const wn_declared *d, int64_t bos, const char *path);
/* Adds GGUF's keys, llama.cpp's where it has them, to those of the tokenizer. context: the model's. */
void wn_declared_put(const wn_declared *d, int64_t context, wn_gguf_values *values);

#endif
