/* Families of models: each is a file in families/ with one struct wn_family, and one line in families.c. It has the
 * family's names in Hugging Face's config.json and in GGUF, reads and writes the configuration there, names the
 * tensors, and says what of a configuration it can express. Reading (import*.c) and writing (export*.c) know no family
 * by name. */
#ifndef WN_FORMATS_FAMILIES_H
#define WN_FORMATS_FAMILIES_H

#include "formats/config_set.h"
#include "formats/gguf_keys.h"
#include "formats/hf_keys.h"
#include "formats/names.h"

enum wn_model_form { WN_FORM_WINNOW, WN_FORM_HF, WN_FORM_GGUF };

struct wn_family {
  struct {
    const char *model_type; /* in config.json; NULL: the family does not exist there */
    const char *class_name; /* written to "architectures" */
    const struct wn_names *names;
    const char *const *keys; /* keys that wn_hf_refuse would refuse but `read` handles; NULL-terminated, or NULL */
    wn_status (*read)(const struct wn_hf_keys *keys, wn_model_config *config);
    void (*write)(struct wn_hf_object *object, const wn_model_config *config);
  } hf;
  struct {
    const char *architecture; /* general.architecture; NULL: the family has none of its own there */
    const struct wn_names *names;
    const char *const
        *keys; /* keys that `read` handles beyond those that every architecture may have; NULL-terminated, or NULL */
    wn_rope_pairs pairs; /* the order of rows of q and k there */
    bool factors; /* llama.cpp reads rope_freqs.weight for this architecture; Llama 3's scaling is written as that
                     tensor */
    /* Called after wn_gguf_keys_sizes, before the rotary pairs are set. */
    wn_status (*read)(const struct wn_gguf_keys *keys, wn_model_config *config);
    void (*write)(const struct wn_gguf_out *out, const wn_model_config *config); /* called after wn_gguf_out_sizes */
  } gguf;
  /* Does a configuration belong to this family, so that it is written as such? The first family that says so gets
   * it. */
  bool (*is)(const wn_model_config *config, enum wn_model_form form);
  /* What the family can express: keys of winnow's config.json beyond sizes and training, and attention mechanisms; both
   * NULL-terminated. Anything else that is not at its default is refused by name. */
  const char *const *keys, *const *mechanisms;
  /* What nevertheless prevents writing this model, in words for the message; NULL: nothing. */
  const char *(*lacks)(const wn_model_config *config, enum wn_model_form form);
};

/* Rows of struct wn_family; `read` and `write` of a Hugging Face row begin with the family's name. Last come the table
 * of names, and what else there is: WN_FAMILY_HF("qwen2", "Qwen2ForCausalLM", qwen2, &wn_llama_hf_names). */
#define WN_FAMILY_HF(model_type_, class_name_, family_, ...)                                                           \
  {                                                                                                                    \
    .model_type = (model_type_), .class_name = (class_name_), .read = family_##_read, .write = family_##_write,        \
    .names = __VA_ARGS__                                                                                               \
  }
#define WN_FAMILY_GGUF(architecture_, pairs_, read_, write_, ...)                                                      \
  {                                                                                                                    \
    .architecture = (architecture_), .pairs = WN_ROPE_##pairs_, .read = (read_), .write = (write_),                    \
    .names = __VA_ARGS__                                                                                               \
  }

/* The family with the name that a file gives; NULL: not known. */
const struct wn_family *wn_family_find(enum wn_model_form form, const char *name);
/* The family as which a configuration is written; NULL: none. */
const struct wn_family *wn_family_of(const wn_model_config *config, enum wn_model_form form);
/* The family's name in that form. */
const char *wn_family_name(const struct wn_family *family, enum wn_model_form form);
const struct wn_names *wn_family_names(const struct wn_family *family, enum wn_model_form form);
/* Writes "gpt2, llama and qwen2": all families that the form has, and `last` (unless NULL) at the end. */
void wn_family_list(enum wn_model_form form, const char *last, char *out, size_t bytes);

#endif
