# Compiles the kernels for AVX-512 and AMX on a processor with AVX2, emulated (tests/avx512/emulate.h). Sources for
# those instruction sets, and sources that ask which sets the processor has, are compiled behind the emulation's
# headers, without the compiler's flags. The test programs avx512_test_* are linked with these objects instead of the
# library's own; tests/avx512/run runs them.
set(emulated ${PROJECT_SOURCE_DIR}/tests/avx512/processor.c ${PROJECT_SOURCE_DIR}/tests/avx512/tiles.c)
foreach(source IN LISTS WINNOW_SOURCES)
  set(before)
  if(source MATCHES "_(vnni|amx)\\.c$")
    set(before "#include \"avx512/emulate.h\"\n#define __AVX512VNNI__ 1\n")
  elseif(source MATCHES "_(avx512|avx512bf16)\\.c$")
    set(before "#include \"avx512/emulate.h\"\n")
  elseif(source MATCHES "\\.c$")
    file(STRINGS ${source} asks REGEX "__builtin_cpu_supports|target\\(\"|WN_SCORE_(CURVE|KEYED)\\(")
    if(asks)
      set(before "#include \"avx512/processor.h\"\n")
    endif()
  endif()
  if(before)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/src ${source})
    file(CONFIGURE OUTPUT avx512/${path} CONTENT "${before}#include \"${path}\"\n")
    list(APPEND emulated ${PROJECT_BINARY_DIR}/avx512/${path})
  endif()
endforeach()
add_library(winnow_emulated_avx512 OBJECT ${emulated})
target_link_libraries(winnow_emulated_avx512 PRIVATE winnow_flags ${WINNOW_COMPILED_WITH})
target_compile_options(winnow_emulated_avx512 PRIVATE -fopenmp-simd) # like winnow_objects
target_include_directories(winnow_emulated_avx512 PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
# A higher level takes the compiler minutes, since every instruction is a loop.
target_compile_options(winnow_emulated_avx512 PRIVATE -O1 -mavx2 -mfma -mf16c -Wno-psabi)
# No other sanitizer sees these kernels: an overflow of whole numbers ends the program.
target_compile_options(winnow_emulated_avx512 PRIVATE -fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error)
target_compile_definitions(winnow_emulated_avx512 PRIVATE WN_HAVE_ONEDNN=${ONEDNN_ON} WN_HAVE_LIBXSMM=${LIBXSMM_ON}
                           WN_HAVE_ZLIB=${ZLIB_ON} WN_HAVE_ZSTD=${ZSTD_ON})
foreach(test ops/test_packed ops/test_packed_bf16 ops/test_packed_strips ops/test_rows_apart ops/test_products
        ops/test_product_amx ops/test_op_backends ops/test_op_bf16 ops/test_cpu_ops ops/test_experts
        ops/test_attention_backends ops/test_attention_bf16 ops/test_attention_stored ops/test_attention_look
        ops/test_attention_open ops/test_attention_slots ops/test_attention_threshold attention/test_score_maps
        attention/test_strength golden/test_golden_attention golden/test_golden_model golden/test_golden_policy
        golden/test_golden_muon io/test_gguf_encode)
  get_filename_component(name ${test} NAME)
  string(APPEND programs "${name}\n")
  set(name avx512_${name})
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/${test}.c $<TARGET_OBJECTS:winnow_emulated_avx512>
                 $<TARGET_OBJECTS:winnow_guard_trap> $<TARGET_OBJECTS:winnow_reach>)
  target_compile_options(${name} PRIVATE -include ${PROJECT_SOURCE_DIR}/tests/avx512/processor.h ${WINNOW_TEST_FLAGS})
  target_link_options(${name} PRIVATE ${WINNOW_TEST_LINKER})
  target_link_libraries(${name} PRIVATE winnow_flags winnow_naive winnow_static PkgConfig::CMOCKA PkgConfig::JANSSON)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE WN_TEST_DIR="${PROJECT_SOURCE_DIR}/tests" WN_BINARY="$<TARGET_FILE_DIR:${name}>/winnow")
endforeach()
file(CONFIGURE OUTPUT avx512/programs CONTENT "${programs}") # tests/avx512/run asks whether it runs each
