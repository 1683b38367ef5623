# foresail_install(): the package files, and the scenarios as examples beside the catalogues, which
# their modules install. Called once, after all modules.
include(CMakePackageConfigHelpers)

function(foresail_install)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/foresail)
  set(foresail_data_dir ${CMAKE_INSTALL_DATADIR}/foresail)
  get_property(foresail_modules GLOBAL PROPERTY FORESAIL_MODULES)
  set(foresail_module_deps "")
  foreach(module IN LISTS foresail_modules)
    get_property(deps GLOBAL PROPERTY FORESAIL_MODULES_OF_${module})
    string(APPEND foresail_module_deps "set(_foresail_${module}_modules ${deps})\n")
  endforeach()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/foresailConfig.cmake.in
    ${PROJECT_BINARY_DIR}/foresailConfig.cmake
    INSTALL_DESTINATION ${package_dir}
    PATH_VARS foresail_data_dir)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/foresailConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/foresailConfig.cmake
    ${PROJECT_BINARY_DIR}/foresailConfigVersion.cmake DESTINATION ${package_dir})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/scenarios DESTINATION ${foresail_data_dir}
    FILES_MATCHING PATTERN "*.yaml"
    PATTERN catalogue EXCLUDE PATTERN include EXCLUDE PATTERN src EXCLUDE)
endfunction()
