/* A mechanism that only one test knows: its settings, with a key "NAME.enabled", and the rest of its registry entry.
 * The test sets wn_mechanism_of_test to the entry. */
#ifndef TESTS_OWN_MECHANISM_H
#define TESTS_OWN_MECHANISM_H

#include "attention/registry.h"

struct own_settings {
  bool enabled;
};
WN_MECHANISM_SETTINGS(own)
static bool own_is_enabled(const wn_attention_config *config) {
  return own_of(config)->enabled;
}
static const char *const own_cases[] = {NULL};
#define OWN_FIELD(name)                                                                                                \
  { name ".enabled", WN_FIELD_BOOL, offsetof(struct own_settings, enabled), 0, 0, NULL, "a mechanism of the test" }
/* The entry of mechanism `key` with one field, then what the test adds. */
#define OWN_MECHANISM(key, field, ...)                                                                                 \
  {                                                                                                                    \
    .name = key, .summary = "a mechanism of the test", .fields = &(field), .field_count = 1,                           \
    .settings = sizeof(struct own_settings), .is_enabled = own_is_enabled, .cases = own_cases, __VA_ARGS__             \
  }

#endif
