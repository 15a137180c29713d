# frozen_string_literal: true

ENV["BUNDLE_GEMFILE"] ||= File.expand_path("../Gemfile", __dir__)
require "bundler/setup"
# Rails 6.1 and 7.0 expect that somebody has loaded it.
require "logger"
