# frozen_string_literal: true

require_relative "lib/jobqueue/sidecar/version"

Gem::Specification.new do |spec|
  spec.name = "jobqueue-sidecar"
  spec.version = Jobqueue::Sidecar::VERSION
  spec.summary = "Runs Sidekiq jobs of a Rails application that a jobqueue worker posts to it"
  spec.description = "A Rack application for Puma beside a jobqueue worker: it executes jobs inside Sidekiq's server " \
                     "middleware and the Rails reloader, and answers what is to become of each."
  spec.authors = ["The jobqueue authors"]
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 2.7"
  spec.files = Dir["lib/**/*.{rb,ru}", "exe/*", "README.md"]
  spec.bindir = "exe"
  spec.executables = ["jobqueue-sidecar"]
  spec.add_dependency "puma", ">= 5.0"
  spec.add_dependency "railties", ">= 6.0"
  spec.add_dependency "sidekiq", ">= 6.0"
end
