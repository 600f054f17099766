# libjpeg-turbo, with its vector code for ARM, and that for x86-64 if there is nasm to assemble it:
#
#   EDGEPACK_NASM  the program, or nothing
#
# Pixels are the same with that code and without it.
set(_jpeg "${EDGEPACK_OPENCV_SOURCE}/3rdparty/libjpeg-turbo")

set(_16
  jcapistd jccolor jcdiffct jclossls jcmainct jcprepct jcsample jdapistd jdcolor jddiffct jdlossls
  jdmainct jdpostct jdsample jutils)
set(_12
  ${_16} jccoefct jcdctmgr jdcoefct jddctmgr jdmerge jfdctfst jfdctint jidctflt jidctfst jidctint
  jidctred jquant1 jquant2)
set(_8
  ${_12} jaricom jcapimin jcarith jchuff jcicc jcinit jclhuff jcmarker jcmaster jcomapi jcparam
  jcphuff jctrans jdapimin jdarith jdatadst jdatasrc jdicc jdinput jdlhuff jdmarker jdmaster
  jdphuff jdtrans jerror jfdctflt jmemmgr jmemnobs jpeg_nbits)
# jscaled.c has it, and jdhuff.c, in it.
list(REMOVE_ITEM _8 jdcoefct)

set(JPEG_LIB_VERSION 70)
set(VERSION "3.1.2")
set(LIBJPEG_TURBO_VERSION_NUMBER 3001002)
set(COPYRIGHT_YEAR "1991-2025")
set(BUILD "edgepack")
set(INLINE "inline")
set(HIDDEN "")
set(THREAD_LOCAL "")
set(SIZE_T "${CMAKE_SIZEOF_VOID_P}")
set(HAVE_BUILTIN_CTZL 1)
set(C_ARITH_CODING_SUPPORTED 1)
set(D_ARITH_CODING_SUPPORTED 1)
set(HAVE_VLD1_S16_X3 1)
set(HAVE_VLD1_U16_X2 1)
set(HAVE_VLD1Q_U8_X4 1)
set(EDGEPACK_NASM "" CACHE FILEPATH "nasm, for the x86-64 code of libjpeg-turbo")
set(_neon 0)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(arm|aarch64)")
  set(_neon 1)
endif()
if(_neon OR EDGEPACK_NASM)
  set(WITH_SIMD 1)
endif()
foreach(_header jconfig.h jconfigint.h jversion.h)
  configure_file("${_jpeg}/${_header}.in" "${_generated}/jpeg/${_header}")
endforeach()

set(_jpeg_include "${_generated}/jpeg" "${_jpeg}/src")
foreach(_bits 8 12 16)
  list(TRANSFORM _${_bits} REPLACE "(.+)" "${_jpeg}/src/\\1.c" OUTPUT_VARIABLE _sources)
  add_library(jpeg${_bits} OBJECT ${_sources})
  target_include_directories(jpeg${_bits} PRIVATE ${_jpeg_include})
  target_compile_definitions(jpeg${_bits} PRIVATE
    BITS_IN_JSAMPLE=${_bits} NO_GETENV NO_PUTENV $<$<BOOL:${_neon}>:NEON_INTRINSICS>)
  target_compile_options(jpeg${_bits} PRIVATE -O3)
endforeach()

target_sources(jpeg8 PRIVATE jscaled.c)

set(_simd "${_jpeg}/simd")
if(_neon)
  # A compiler would make a call of memset of its loop again.
  target_sources(jpeg8 PRIVATE jclear.c)
  set_source_files_properties(jclear.c PROPERTIES COMPILE_OPTIONS
    "-fno-builtin;$<$<C_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>")
  set_source_files_properties(jscaled.c PROPERTIES COMPILE_DEFINITIONS jzero_far=edgepack_clear)
  math(EXPR _width "8 * ${CMAKE_SIZEOF_VOID_P}")
  configure_file("${_simd}/arm/neon-compat.h.in" "${_generated}/jpeg/neon-compat.h")
  set(_names
    aarch${_width}/jchuff aarch${_width}/jsimd jccolor jcgray jcphuff jcsample jdcolor jdmerge
    jdsample jfdctfst jfdctint jidctfst jidctint jidctred jquanti)
  list(TRANSFORM _names REPLACE "(.+)" "${_simd}/arm/\\1-neon.c" OUTPUT_VARIABLE _sources)
  list(TRANSFORM _sources REPLACE "jsimd-neon" "jsimd")
  target_sources(jpeg8 PRIVATE ${_sources})
  target_include_directories(jpeg8 PRIVATE "${_simd}/arm" "${_simd}")
elseif(EDGEPACK_NASM)
  set(_names
    jccolor-avx2 jccolor-sse2 jcgray-avx2 jcgray-sse2 jchuff-sse2 jcphuff-sse2 jcsample-avx2
    jcsample-sse2 jdcolor-avx2 jdcolor-sse2 jdmerge-avx2 jdmerge-sse2 jdsample-avx2 jdsample-sse2
    jfdctflt-sse jfdctfst-sse2 jfdctint-avx2 jfdctint-sse2 jidctflt-sse2 jidctfst-sse2
    jidctint-avx2 jidctint-sse2 jidctred-sse2 jquantf-sse2 jquanti-avx2 jquanti-sse2 jsimdcpu)
  # Not as a language of the project: nasm knows no option of the compilers.
  foreach(_name ${_names})
    set(_object "${CMAKE_CURRENT_BINARY_DIR}/${_name}.o")
    add_custom_command(
      OUTPUT "${_object}"
      COMMAND "${EDGEPACK_NASM}" -f elf64 -DELF -D__x86_64__ -DPIC
        "-I${_simd}/nasm/" "-I${_simd}/x86_64/" -o "${_object}" "${_name}.asm"
      WORKING_DIRECTORY "${_simd}/x86_64"
      DEPENDS "${_simd}/x86_64/${_name}.asm")
    set_source_files_properties("${_object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    list(APPEND _assembled "${_object}")
  endforeach()
  target_sources(jpeg8 PRIVATE "${_simd}/x86_64/jsimd.c")
  target_include_directories(jpeg8 PRIVATE "${_simd}")
endif()
