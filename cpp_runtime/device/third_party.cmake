# The few files of libsodium, zlib and zstd that are needed, as one static library. Their own
# build systems would configure for far more.
set(_sodium "${EDGEPACK_THIRD_PARTY}/libsodium")
set(_zlib "${EDGEPACK_THIRD_PARTY}/zlib")
set(_generated "${CMAKE_CURRENT_BINARY_DIR}/generated")
set(Z_HAVE_UNISTD_H ON)
configure_file("${_zlib}/zconf.h.in" "${_generated}/zconf.h")
# libsodium's configure writes the version into this header; nothing here asks for it.
file(WRITE "${_generated}/sodium/version.h" "")
file(WRITE "${_generated}/version.h" "")

add_library(third_party STATIC
  "${_sodium}/crypto_core/ed25519/ref10/ed25519_ref10.c"
  "${_sodium}/crypto_hash/sha256/cp/hash_sha256_cp.c"
  "${_sodium}/crypto_hash/sha512/cp/hash_sha512_cp.c"
  "${_sodium}/crypto_hash/sha512/hash_sha512.c"
  "${_sodium}/crypto_sign/ed25519/ref10/open.c"
  "${_sodium}/crypto_sign/ed25519/ref10/sign.c"
  "${_sodium}/crypto_verify/verify.c"
  src/sodium_utils.c
  "${_zlib}/adler32.c"
  "${_zlib}/crc32.c"
  "${_zlib}/inffast.c"
  "${_zlib}/inflate.c"
  "${_zlib}/inftrees.c"
  "${_zlib}/zutil.c"
  "${EDGEPACK_THIRD_PARTY}/zstd/zstd.c")
target_include_directories(third_party SYSTEM
  PUBLIC
    "${_sodium}/include"
    "${_sodium}/include/sodium"
    "${_generated}"
    "${_zlib}"
    "${EDGEPACK_THIRD_PARTY}"
  PRIVATE
    "${_sodium}/include/sodium/private"
    "${_sodium}/crypto_sign/ed25519/ref10")
target_compile_definitions(third_party
  PUBLIC
    SODIUM_STATIC=1
    ZLIB_CONST=1
  PRIVATE
    # As in libsodium's own configure for a compiler of today.
    CONFIGURED=1
    HAVE_C_VARARRAYS=1
    $<$<EQUAL:${CMAKE_SIZEOF_VOID_P},8>:HAVE_TI_MODE=1>
    NATIVE_LITTLE_ENDIAN=1
    # The decoder alone, and its smaller form.
    DYNAMIC_BMI2=0
    ZSTD_DISABLE_ASM=1
    ZSTD_LEGACY_SUPPORT=0
    ZSTD_STRIP_ERROR_STRINGS=1
    HUF_FORCE_DECOMPRESS_X1=1
    ZSTD_FORCE_DECOMPRESS_SEQUENCES_SHORT=1)
# Curves and decoders take most of a test's time: a debug build has them optimised.
target_compile_options(third_party PRIVATE -w $<$<CONFIG:Debug>:-O1>)
target_link_libraries(third_party PRIVATE edgepack_options)
