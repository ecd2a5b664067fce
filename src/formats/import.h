/* Models of other programs: private to src/formats.
 *
 * What is read: a folder of Hugging Face transformers (config.json; safetensors) and GGUF files. The family that they
 * say they are of gives our configuration (import_config.c) and a naming of tensors (names.h); import.c checks every
 * tensor and makes the model. */
#ifndef WN_FORMATS_IMPORT_H
#define WN_FORMATS_IMPORT_H

#include <jansson.h>
#include "io/tensors.h"
#include "formats/families.h"

/* What a model of ours calls itself where others name an architecture. */
#define WN_OWN_ARCHITECTURE "winnow"

struct wn_adapter;

struct wn_import {
  enum wn_model_form form;
  char where[4096];               /* the file that the configuration comes from, for messages */
  const struct wn_family *family; /* NULL: our own */
  const char *architecture;       /* as the file says it: "llama", "qwen2", ..., WN_OWN_ARCHITECTURE */
  wn_model_config config;
  const struct wn_names *names;
  const char *prefix; /* the naming's, or "" where the file leaves it out */
  struct wn_tensors *tensors;
  int64_t bos, eos;                 /* as the source says, -1: not at all */
  bool unchecked;                   /* values that are not finite are taken */
  const struct wn_adapter *adapter; /* borrowed, or NULL: the model is made with its updates (adapter.h) */
};

/* Opens a folder or a file, of any form: configuration resolved, no tensor checked. Clear it in any case. */
wn_status wn_import_open(wn_context *ctx, const char *path, struct wn_import *out);
/* A GGUF file in a caller's buffer. */
wn_status wn_import_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                     struct wn_import *out);
void wn_import_clear(struct wn_import *import);
/* Every tensor that the configuration implies is there with its shape and a type that can be read, and no other. */
wn_status wn_import_check(wn_context *ctx, const struct wn_import *import);
/* No weight of the files is NaN or infinite: reads all of them. */
wn_status wn_import_check_values(wn_context *ctx, const struct wn_import *import);
/* The model. as_float: every weight a float32 of its own; else matrices in fewer bits are used where they lie, and the
 * model takes the open files (import->tensors is NULL then). */
wn_status wn_import_model(wn_context *ctx, struct wn_import *import, bool as_float, wn_weights weights,
                          struct wn_model **out);

/* The parts: config.json of transformers; a GGUF file's metadata and what its tensors say (*family NULL: our own). */
wn_status wn_import_hf_config(wn_context *ctx, const char *where, const json_t *object, const struct wn_family **family,
                              wn_model_config *out);
wn_status wn_import_gguf_config(wn_context *ctx, const char *where, const struct wn_tensors *tensors,
                                const struct wn_family **family, wn_model_config *out);
/* Values of a row of the configuration's table as the source has them: rows (elements of a vector) first.. of it, in
 * its own order. */
struct wn_import_row {
  const struct wn_tensor *tensor[3];
  struct wn_name_part parts[3];
  int count; /* of parts; 0: the source has none */
  int64_t K; /* elements per row */
};
void wn_import_row(const struct wn_import *import, const struct wn_param *row, struct wn_import_row *out);

#endif
