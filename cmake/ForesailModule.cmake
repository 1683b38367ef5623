# foresail_add_module(<name> SOURCES ... HEADERS ... [DEPS ...] [PRIVATE_DEPS ...])
#
# One module = one folder = one library foresail::<name>. HEADERS are the public files under
# include/; each must compile on its own (target all_verify_interface_header_sets). DEPS are other
# modules and what public headers need; PRIVATE_DEPS stay inside the .cpp files.
#
# The module is installed and exported as component <name> of the package. Each has an export file
# of its own, so that a consumer of `sim` need not have what `runtime` links.
function(foresail_add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "foresail_add_module(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_library(foresail_${name} STATIC ${arg_SOURCES})
  add_library(foresail::${name} ALIAS foresail_${name})
  target_sources(foresail_${name} PUBLIC
    FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
  target_compile_features(foresail_${name} PUBLIC cxx_std_20)
  target_link_libraries(foresail_${name}
    PUBLIC ${arg_DEPS}
    PRIVATE ${arg_PRIVATE_DEPS} $<BUILD_INTERFACE:foresail_warnings>)
  set_target_properties(foresail_${name} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON VERIFY_INTERFACE_HEADER_SETS ON)
  install(TARGETS foresail_${name} EXPORT foresail_${name} FILE_SET HEADERS)
  install(EXPORT foresail_${name} NAMESPACE foresail:: FILE foresail-${name}.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/foresail)
  set(modules ${arg_DEPS} ${arg_PRIVATE_DEPS})
  list(FILTER modules INCLUDE REGEX "^foresail::")
  list(TRANSFORM modules REPLACE "^foresail::" "")
  set_property(GLOBAL APPEND PROPERTY FORESAIL_MODULES ${name})
  set_property(GLOBAL PROPERTY FORESAIL_MODULES_OF_${name} ${modules})
endfunction()
